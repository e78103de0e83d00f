"""Tests of the lints, on small trees: `python3 -m unittest discover -s hack/lint`."""

import contextlib
import importlib.util
import io
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def load(name):
    """A module by its file's name, which has a hyphen."""
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


circles, sizes, doc_comments = load("circles"), load("sizes"), load("doc-comments")
lines = load("lines")
modules, pins = load("modules"), load("pins")
rules = load("rules")


class Circles(unittest.TestCase):
    """Each test writes a crate; in the names of its files, `__` stands for a slash."""

    def found(self, kind, **files):
        with tempfile.TemporaryDirectory() as root:
            for name, source in files.items():
                path = Path(root, "one/src", f"{name.replace('__', '/')}.rs")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source)
            Path(root, "one/Cargo.toml").write_text("")
            self.output = io.StringIO()
            with contextlib.redirect_stdout(self.output), unittest.mock.patch("sys.argv", ["circles.py", "--root", root]):
                code = circles.main()
            found = re.findall(rf"\d+ {kind} use each other: (.*)", self.output.getvalue())
            self.assertEqual(code, 1 if "use each other:" in self.output.getvalue() else 0)
            return found

    def test_two_files_that_use_each_other_are_named_with_their_lines(self):
        use_each_other = {"a": "\nuse crate::b::B; pub struct A;", "b": "pub struct B; fn f() { crate::a::A; }"}
        self.assertEqual(self.found("files", lib="mod a; mod b;", **use_each_other), ["a, b"])
        self.assertIn("a.rs:2 uses crate::b::B of b.rs", self.output.getvalue())
        self.assertIn("b.rs:1 uses crate::a::A of a.rs", self.output.getvalue())

    def test_a_longer_circle_is_found_through_re_exports_globs_and_nested_trees(self):
        files = {
            "lib": "mod a; mod b; mod c; pub use c::*; mod d;",
            "a": "use crate::{b::{self, B}, d}; pub struct A;",
            "b": "use crate::C as Other; pub struct B;",
            "c": "use super::a::A; pub struct C;",
            "d": "pub struct D;",
        }
        self.assertEqual(self.found("files", **files), ["a, b, c"])

    def test_a_child_that_uses_what_its_re_exporting_parent_defines(self):
        child = {"lib": "mod a;", "a__child": "use super::Parent; pub struct Child;"}
        exporting = "mod child; pub use child::Child;"
        self.assertEqual(self.found("files", a__mod=exporting + " pub struct Parent;", **child), ["a, a/child"])
        self.assertEqual(self.found("files", a__mod=exporting + " mod b; pub use b::Parent;",
                                    a__b="pub struct Parent;", **child), [])

    def test_declarations_comments_strings_visibilities_and_tests_are_no_uses(self):
        uses_b = "use crate::b::B; pub struct A;"
        for b in [
            "// use crate::a::A;\npub struct B;",
            'pub struct B; const X: &str = r#"use crate::a::A;"#;',
            "pub struct B; pub(in crate::a) fn f() {}",
            "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }",
            "pub struct B;\nmod inner {\n    use super::B;\n}",
        ]:
            self.assertEqual(self.found("files", lib="mod a; mod b;", a=uses_b, b=b), [], b)
        tests = "use super::*; use crate::a::A;"
        b = "pub struct B;\n#[cfg(test)]\nmod tests;"
        self.assertEqual(self.found("files", lib="mod a; mod b;", a=uses_b, b=b, b__tests=tests), [])

    def test_two_folders_may_not_use_each_other_although_their_files_make_no_circle(self):
        files = {
            "lib": "mod one; mod two;",
            "one__mod": "mod a; mod b;", "one__a": "use crate::two::c::C; pub struct A;", "one__b": "pub struct B;",
            "two": "mod c; use crate::one::b::B;", "two__c": "pub struct C;",
        }
        self.assertEqual(self.found("files", **files), [])
        self.assertEqual(self.found("folders", **files), ["one, two"])
        files["two"] = "mod c;"
        self.assertEqual(self.found("folders", **files), [])
        # A folder and those within it are one.
        files["one__a__deep"], files["one__b"] = "use crate::one::b::B;", "use crate::one::a::deep::D; pub struct B;"
        self.assertEqual(self.found("folders", **files), [])


class Others(unittest.TestCase):
    def test_long_files_and_wide_lines_are_found(self):
        wide = lambda width: "// " + "x" * (width - 3) + "\n"
        files = {"a.rs": "\n" * 601, "b.rs": "\n" * 600, "c.rs": "\n" + wide(141), "d.rs": wide(140)}
        files |= {"e.rs": "x" * 200, "f.rs": "/// <https://" + "x" * 200 + ">\n"}
        found = sizes.problems(files)
        self.assertEqual([line.split(": ")[0] for line in found], ["a.rs", "c.rs:2"])

    def test_production_lines_are_without_blanks_comments_and_tests(self):
        files = {
            "src/lib.rs": "//! Says.\n\nmod one;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nuse a::{\n    b,\n};\nfn f() {\n    // why\n    g();\n}\n"
            "#[cfg(test)]\nmod inner {\n    fn g() {\n    }\n}\nfn h() {}\n",
            "src/one.rs": "struct A {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n",
            "src/tests.rs": "fn t() {}\n", "src/tests/more.rs": "fn t() {}\n",
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            self.assertEqual(lines.rust_lines(Path(folder, "src")), 5 + 3)

    def test_a_file_that_no_program_contains_is_found(self):
        files = {
            "a/src/lib.rs": "pub mod one;\n#[cfg(test)]\npub(crate) mod two;\n", "a/src/one.rs": "mod three;\n// mod lost;\n",
            "a/src/one/three.rs": "", "a/src/two/mod.rs": "", "a/src/lost.rs": "", "a/src/bin/tool.rs": "", "a/build.rs": "",
            "a/tests/main.rs": "mod x;\n#[path = \"../../b/tests/help.rs\"]\nmod help;\n", "a/tests/x.rs": "", "a/tests/lost.rs": "",
            "b/tests/alone.rs": "", "b/tests/help.rs": "", "b/tests/sub/lost.rs": "",
        }
        manifests = {"a/Cargo.toml": "autotests = false\n", "b/Cargo.toml": ""}
        self.assertEqual(modules.forgotten(files, manifests), ["a/src/lost.rs", "a/tests/lost.rs", "b/tests/sub/lost.rs"])
        manifests["b/Cargo.toml"] = '[[test]]\npath = "tests/sub/lost.rs"\n'
        self.assertNotIn("b/tests/sub/lost.rs", modules.forgotten(files, manifests))

    def test_rules_of_models_are_compared_with_the_code_that_names_them(self):
        with tempfile.TemporaryDirectory() as root:
            files = {
                "models/src/a.rs": 'One = "a.one" keeps X; Two = "a.two" keeps X;',
                "models/src/designs/b.rs": 'Three = "b.three" keeps X;',
                "models/mutants.toml": "".join(
                    f"[[mutant]]\nrule = '{rule}'\nfile = 'store/src/c.rs'\nbefore = '{before}'\n"
                    for rule, before in (("c.pure", "x + 1"), ("c.gone", "y + 1"), ("c.silent", "z + 1"))
                ),
                "store/src/c.rs": "// Rule: a.one.\n// Rule: c.pure.\nx + 1; z + 1; // Rule: c.gone. Rule: d.unknown. Rule: b.three.\n",
            }
            for name, text in files.items():
                (Path(root) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(root) / name).write_text(text)
            subprocess.run(["git", "init", "-q", root], check=True)
            found = rules.problems(Path(root))
        for rule in ("a.two", "c.gone", "c.silent", "d.unknown", "b.three"):
            self.assertTrue(any(rule in line for line in found), (rule, found))
        self.assertFalse(any(rule in line for rule in ("a.one", "c.pure") for line in found), found)

    def test_only_the_first_line_of_a_doc_comment_is_looked_at(self):
        source = "//! What lives here.\n\n/// Sends it.\n/// That is why.\nfn f() {}\n    /// Of a thing.\n//// Of\n// Of\n"
        self.assertEqual([number for number, _ in doc_comments.problems(source)], [1, 6])
        self.assertEqual(doc_comments.problems("/// Offset.\n\n/// Whatever.\n\n/// The sample.\n"), [])

    def test_scripts_may_fetch_exact_versions_only(self):
        good = (
            "cargo install --quiet --locked tool --version 1.2.3\n"
            "cargo install --path cli\n"
            "python3 -m pip install --require-hashes \\\n  --requirement requirements.txt\n"
            "CGO_ENABLED=0 \\\n  go build -mod=readonly -o x ./cmd\n"
            "go run example.com/tool@v1.2.3\n"
            "npm ci\n"
            "# npm install\n"
            "curl http://127.0.0.1:1/ https://$address/\n"
        )
        self.assertEqual(pins.script_problems(good), [])
        for line in (
            "cargo install --locked tool",
            "cargo install tool --version 1.2.3",
            "pip install tool==1",
            "python3 -m pip download tool==1",
            "go build ./cmd",
            "go install example.com/tool@latest",
            "go get example.com/tool@v1.2.3",
            "npm install tool@1.2.3",
            "mvn dependency:copy",
            "curl -fsSL https://example.com/tool -o tool",
        ):
            self.assertEqual([number for number, _ in pins.script_problems(f"true \\\n  x\n{line}\n")], [3], line)

    def test_actions_are_pinned_by_commit_and_packages_by_hash(self):
        commit = "0123456789abcdef0123456789abcdef01234567"
        good = f"- uses: a/b@{commit} # v1.2.3\n  uses: ./.github/workflows/ci.yml\n"
        self.assertEqual(pins.workflow_problems(good), [])
        for reference in ("a/b@v1", f"a/b@{commit}", f"a/b@{commit} # v1", f"a/b@{commit[1:]} # v1.2.3"):
            self.assertEqual(len(pins.workflow_problems(f"- uses: {reference}\n")), 1, reference)
        self.assertEqual(pins.requirement_problems("# x\na==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n    # via b\n"), [])
        self.assertEqual([n for n, _ in pins.requirement_problems("a==1\nb>=1 --hash=sha256:00\n")], [1, 2])

    def test_base_images_have_a_digest(self):
        digest = f"sha256:{'0' * 64}"
        self.assertEqual(pins.image_problems(f"FROM scratch AS a\nFROM a/b:1@{digest} AS b\nCOPY x /\n"), [])
        self.assertEqual([n for n, _ in pins.image_problems("FROM scratch\nFROM debian:12\nfrom a@sha256:00\n")], [2, 3])

    def test_what_is_locked_has_its_lock_file(self):
        files = {"a/go.mod": "module a\n", "b/go.mod": "module b\nrequire c v1\n", "Cargo.toml": "[workspace]\n", "x/package.json": ""}
        self.assertEqual(len(list(pins.problems(files))), 3)
        locks = {"b/go.sum": "", "Cargo.lock": "", "x/package-lock.json": ""}
        self.assertEqual(list(pins.problems(files | locks)), [])


if __name__ == "__main__":
    unittest.main()
