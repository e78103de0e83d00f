"""Tests of the scripts of a release: `python3 -m unittest discover -s hack/release`."""

import io
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import archive  # noqa: E402
import krew  # noqa: E402
import notes  # noqa: E402
import sbom  # noqa: E402
import version  # noqa: E402


class Sboms(unittest.TestCase):
    def test_a_repeated_crate_keeps_the_dependencies_of_its_first_place(self):
        lines = ["0 app v0.1.0 (/x/app)", "1 a v1.0.0", "2 b v2.0.0+x", "1 c v3.0.0", "2 a v1.0.0 (*)", "", "0 c v3.0.0 (*)"]
        graph = sbom.parse_tree(lines)
        app, a, b, c = ("app", "0.1.0"), ("a", "1.0.0"), ("b", "2.0.0+x"), ("c", "3.0.0")
        self.assertEqual(graph, {app: {a, c}, a: {b}, b: set(), c: {a}})
        self.assertEqual(sbom.closure(graph, c), {c, a, b})

    def test_only_libraries_for_the_target_are_linked(self):
        def unit(name, *dependencies, kind="lib", mode="build", platform="t"):
            target = {"name": name, "kind": [kind]}
            links = [{"index": index} for index in dependencies]
            return {"pkg_id": name, "target": target, "mode": mode, "platform": platform, "dependencies": links}

        units = [
            unit("app", 1, 2, 3, kind="bin"),
            unit("a", 4),
            unit("derive", 5, kind="proc-macro", platform=None),
            unit("script", 5, kind="custom-build", mode="run-custom-build"),
            unit("b"),
            unit("host", platform=None),
            unit("other", 4, kind="bin"),
        ]
        self.assertEqual(sbom.linked_units(units, [0, 6], "app"), {"app", "a", "b"})
        self.assertEqual(sbom.linked_units(units, [0, 6], "other"), {"other", "b"})

    def test_messages_of_a_build_tell_what_was_compiled_for_the_target(self):
        message = '{"reason": "compiler-artifact", "package_id": "%s", "target": {"kind": ["%s"]}, "filenames": ["%s"]}'
        messages = [
            message % ("a", "lib", "/target/t/release/deps/liba.rlib"),
            message % ("b", "proc-macro", "/target/release/deps/libb.so"),
            message % ("c", "custom-build", "/target/t/release/build/c"),
            '{"reason": "build-script-executed", "package_id": "d"}',
            "warning: something",
        ]
        self.assertEqual(sbom.compiled(messages, "t", {"a": ("a", "1"), "b": ("b", "1"), "c": ("c", "1")}), {("a", "1")})

    def test_a_difference_names_both_sides(self):
        self.assertEqual(sbom.difference({("a", "1")}, {("a", "1")}), "")
        text = sbom.difference({("a", "1"), ("b", "2")}, {("a", "1"), ("c", "3")})
        self.assertEqual(text, "lacks c 3; has too much: b 2")


class Releases(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def test_notes_are_the_section_of_the_version(self):
        ten = "## 0.10.0 (2026-02-01)\n\nTen.\n\n### Fixed\n\nAll.\n\n"
        changelog = f"# Changelog\n\n## Unreleased\n\nNew.\n\n{ten}## 0.1.0\n\nOne.\n"
        self.assertEqual(notes.section(changelog, "0.10.0"), "Ten.\n\n### Fixed\n\nAll.")
        self.assertEqual(notes.section(changelog, "0.1.0"), "One.")
        self.assertIsNone(notes.section(changelog, "0.1"))
        self.assertIsNone(notes.section(changelog, "0.1.0-rc.1"))

    def test_links_in_notes_lead_to_the_tag(self):
        text = "[a](docs/a.md#b) [c](https://example.com/) [d](#e) [f](./g.md)"
        base = f"{notes.REPOSITORY}/blob/v1.2.3"
        wanted = f"[a]({base}/docs/a.md#b) [c](https://example.com/) [d](#e) [f]({base}/g.md)"
        self.assertEqual(notes.absolute_links(text, "1.2.3"), wanted)

    def test_every_place_that_states_the_version_is_found_and_written(self):
        for file, _ in version.PLACES:
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            (self.root / file).write_text((version.ROOT / file).read_text())
        self.assertEqual(version.problems(self.root), [])
        chart = self.root / "charts/sluice/Chart.yaml"
        chart.write_text(chart.read_text().replace("\nversion: ", "\nversion: 9"))
        self.assertEqual([line.split(":")[0] for line in version.problems(self.root)], ["charts/sluice/Chart.yaml"])
        version.write("7.8.9-rc.1", self.root)
        self.assertEqual((version.version(self.root), version.problems(self.root)), ("7.8.9-rc.1", []))

    def test_archives_of_equal_files_are_equal(self):
        for name, mode in (("tool", 0o755), ("LICENSE", 0o600)):
            (self.root / name).write_text(name)
            (self.root / name).chmod(mode)
        files = [self.root / "tool", self.root / "LICENSE"]
        packed = archive.pack(files, 7)
        (self.root / "tool").touch()
        self.assertEqual(archive.pack(files, 7), packed)
        with tarfile.open(fileobj=io.BytesIO(packed)) as content:
            found = [(m.name, oct(m.mode), m.mtime, m.uid) for m in content.getmembers()]
        self.assertEqual(found, [("tool", "0o755", 7, 0), ("LICENSE", "0o644", 7, 0)])

    def test_the_manifest_of_the_plugin_has_the_archives_that_are_there(self):
        (self.root / "sluice-1.2.3-linux-arm64.tar.gz").write_bytes(b"x")
        text = krew.manifest("1.2.3", self.root, ["linux-amd64", "linux-arm64"])
        self.assertEqual(text.count("selector"), 1)
        self.assertIn("/v1.2.3/sluice-1.2.3-linux-arm64.tar.gz\n", text)
        self.assertIn("2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881", text)


if __name__ == "__main__":
    unittest.main()
