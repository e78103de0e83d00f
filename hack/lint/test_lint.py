"""Tests of the lints, on small trees: `python3 -m unittest discover -s hack/lint`."""

import contextlib
import importlib.util
import io
import sys
import tempfile
import unittest
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


import_circles, sizes, doc_comments = load("import-circles"), load("sizes"), load("doc-comments")
bench_versions = load("bench-versions")
pins = load("pins")


class Trees(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()

    def crate(self, **files):
        """Writes files; in their names, `__` stands for a slash."""
        (self.root / "one").mkdir(exist_ok=True)
        (self.root / "one/Cargo.toml").write_text('[package]\nname = "sluice-one"\n')
        for name, source in files.items():
            path = self.root / "one/src" / f"{name.replace('__', '/')}.rs"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return import_circles.Crate(self.root / "one")

    def edges(self, **files):
        crate = self.crate(**files)
        short = lambda file: str(file.relative_to(crate.source)).removesuffix(".rs")
        return {(short(a), short(b)) for a, b in crate.edges()}

    def circles(self, **files):
        crate = self.crate(**files)
        return [[file.stem for file in circle] for circle in import_circles.circles(crate.edges())]


class Edges(Trees):
    def test_a_module_declaration_is_no_use(self):
        self.assertEqual(self.edges(lib="mod a; mod b { }", a="pub fn f() {}"), set())

    def test_a_use_of_an_item_is_one(self):
        edges = self.edges(lib="mod a; mod b;", a="use crate::b::B;", b="pub struct B;")
        self.assertEqual(edges, {("a", "b")})

    def test_a_re_export_is_followed_to_the_file_that_defines_the_item(self):
        edges = self.edges(
            lib="mod a; mod b; pub use b::Thing;",
            a="use crate::Thing;",
            b__mod="mod inner; pub(crate) use inner::{Thing, Other as Renamed};",
            b__inner="pub struct Thing; pub struct Other;",
        )
        self.assertEqual(edges, {("a", "b/inner"), ("b/mod", "b/inner"), ("lib", "b/inner")})
        edges = self.edges(a="use crate::b::Renamed;")
        self.assertIn(("a", "b/inner"), edges)

    def test_a_glob_re_export_is_followed(self):
        edges = self.edges(
            lib="mod a; mod b;",
            a="use crate::b::Thing;",
            b="mod inner; pub use inner::*;",
            b__inner="pub struct Thing;",
        )
        self.assertEqual(edges, {("a", "b/inner"), ("b", "b/inner")})

    def test_nested_use_trees_are_read_whole(self):
        edges = self.edges(
            lib="mod a; mod b; mod c; mod d; mod e;",
            a="use crate::{b::{self, B}, c::{x::{C as Z, X}, Y}, d::*};\nfn f() { b::g(); D; }",
            b="pub struct B; pub fn g() {}",
            c="pub mod x; pub struct Y;",
            c__x="pub struct C; pub struct X;",
            d="pub struct D;",
            e="pub struct E;",
        )
        self.assertEqual(edges, {("a", "b"), ("a", "c"), ("a", "c/x"), ("a", "d")})

    def test_super_and_self_paths_are_relative_to_the_module(self):
        edges = self.edges(
            lib="mod a;",
            a__mod="mod b; mod c; pub struct A; use self::b::B;",
            a__b="pub struct B; fn f() { super::c::g(); }",
            a__c="pub fn g(a: super::A) {} mod inline { use super::super::b::B; }",
        )
        self.assertEqual(edges, {("a/mod", "a/b"), ("a/b", "a/c"), ("a/c", "a/mod"), ("a/c", "a/b")})

    def test_paths_in_code_are_uses(self):
        edges = self.edges(
            lib="mod a; mod b; mod c; mod d; fn main() { a::f(); }",
            a="#[arg(value_parser = crate::d::parse)]\npub fn f(x: crate::b::B) -> Vec::<crate::c::C> { }",
            b="pub struct B;",
            c="pub struct C;",
            d="pub fn parse() {}",
        )
        self.assertEqual(edges, {("lib", "a"), ("a", "b"), ("a", "c"), ("a", "d")})

    def test_importing_a_module_is_a_use_only_of_what_is_named_through_it(self):
        edges = self.edges(
            lib="mod a; mod b;",
            a="use crate::b;\nfn f() { b::inner(); }",
            b__mod="mod inner; pub use inner::inner;",
            b__inner="pub fn inner() {}",
        )
        self.assertEqual(edges, {("a", "b/inner"), ("b/mod", "b/inner")})

    def test_comments_strings_and_visibilities_are_no_uses(self):
        edges = self.edges(
            lib="mod a; mod b;",
            a="// crate::b::B\n/* /* crate::b::B */ use crate::b::B; */ /// [`crate::b::B`]\n"
            "pub(in crate::b) fn f<'a>() { (\"crate::b::B\", r#\"\" crate::b::B\"#, '\"', 'c'); }",
            b="pub struct B;",
        )
        self.assertEqual(edges, set())

    def test_a_glob_of_the_parent_leads_to_what_is_used_of_it(self):
        edges = self.edges(
            lib="mod a; mod b;",
            a="use crate::b::B; pub fn f() {} #[cfg(test)] mod tests;",
            a__tests="use super::*; fn t() { f(); B; }",
            b="pub struct B;",
        )
        self.assertEqual(edges, {("a", "b"), ("a/tests", "a"), ("a/tests", "b")})

    def test_what_a_macro_makes_is_in_the_file_of_its_module(self):
        edges = self.edges(
            lib="#[macro_use] mod m; mod a; mod b;",
            m="macro_rules! make { ($n:ident) => { pub struct $n; } }",
            a="use crate::b::Made;",
            b="make!(Made);",
        )
        self.assertEqual(edges, {("a", "b"), ("b", "m")})

    def test_a_path_attribute_names_the_file(self):
        edges = self.edges(lib='#[path = "x/other.rs"] mod a; use a::A;', x__other="pub struct A;")
        self.assertEqual(edges, {("lib", "x/other")})

    def test_a_binary_may_use_the_library_by_its_name(self):
        edges = self.edges(lib="pub mod a;", a="pub fn f() {}", bin__tool="fn main() { sluice_one::a::f(); }")
        self.assertEqual(edges, {("bin/tool", "a")})


class Circles(Trees):
    def test_two_files_that_use_each_other(self):
        found = self.circles(lib="mod a; mod b;", a="use crate::b::B; pub struct A;", b="use crate::a::A; pub struct B;")
        self.assertEqual(found, [["a", "b"]])

    def test_a_child_that_uses_what_its_re_exporting_parent_defines(self):
        found = self.circles(
            lib="mod a;",
            a__mod="mod child; pub use child::Child; pub struct Parent;",
            a__child="use super::Parent; pub struct Child;",
        )
        self.assertEqual(found, [["child", "mod"]])

    def test_siblings_may_use_each_other_through_their_parent_one_way(self):
        found = self.circles(
            lib="mod a;",
            a__mod="mod one; mod two; pub use one::One; pub use two::Two;",
            a__one="use super::Two; pub struct One;",
            a__two="pub struct Two;",
        )
        self.assertEqual(found, [])

    def test_a_circle_through_a_re_export_is_found_and_the_smallest_comes_first(self):
        found = self.circles(
            lib="mod a; mod b; mod c; mod d; mod e; pub use c::C;",
            a="use crate::b::B; pub struct A;",
            b="use crate::C; pub struct B;",
            c="use crate::a::A; pub struct C;",
            d="use crate::e::E; pub struct D;",
            e="use crate::d::D; pub struct E;",
        )
        self.assertEqual(found, [["d", "e"], ["a", "b", "c"]])

    def test_a_file_of_tests_closes_none(self):
        found = self.circles(
            lib="mod a; mod b;",
            a="pub struct A; #[cfg(test)] mod tests;",
            a__tests="use super::*; use crate::b::B; fn t() { A; }",
            b="use crate::a::A; pub struct B;",
        )
        self.assertEqual(found, [])

    def test_the_report_names_each_use_with_its_line(self):
        self.crate(lib="mod a; mod b;", a="\nuse crate::b::B; pub struct A;", b="mod t { use crate::a::A; } pub struct B;")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            count = import_circles.report(self.root, self.root / "one")
        self.assertEqual(count, 1)
        self.assertIn("a.rs -> b.rs -> a.rs", output.getvalue())
        self.assertIn("a.rs:2 uses crate::b::B of b.rs", output.getvalue())


class Others(unittest.TestCase):
    def test_large_folders_and_files_are_found(self):
        lengths = {f"one/src/{n}.rs": 10 for n in range(16)} | {"two/src/a.rs": 601, "two/src/b.rs": 600}
        found = sizes.problems(lengths)
        self.assertEqual([line.split(":")[0] for line in found], ["one/src", "two/src/a.rs"])

    def test_only_the_first_line_of_a_doc_comment_is_looked_at(self):
        source = "//! What lives here.\n\n/// Sends it.\n/// That is why.\nfn f() {}\n    /// Of a thing.\n//// Of\n// Of\n"
        self.assertEqual([number for number, _ in doc_comments.problems(source)], [1, 6])
        self.assertEqual(doc_comments.problems("/// Offset.\n\n/// Whatever.\n\n/// The sample.\n"), [])

    def test_bench_must_be_built_like_the_root(self):
        package = {"version": "0.1.0", "edition": "2024", "rust-version": "1.95"}
        root = {
            "workspace": {"package": package, "dependencies": {"a": "1.2", "b": "2"}, "lints": {"l": 1}},
            "profile": {"release": {"lto": "thin"}},
        }
        bench = {"package": package, "dependencies": {"a": "1.2", "c": "3"}, "lints": {"l": 1}, "profile": root["profile"]}
        lock = lambda **versions: {"package": [{"name": n, "version": v} for n, v in versions.items()]}
        ours = lock(a="1.2.3", b="2.0.0", z="0.3.1")
        self.assertEqual(bench_versions.problems(root, ours, bench, lock(a="1.2.3", c="3.0.0", z="0.4.0")), [])
        bench |= {"dependencies": {"a": "1.1"}, "profile": {}}
        found = bench_versions.problems(root, ours, bench, lock(a="1.1.0", z="0.3.2"))
        self.assertEqual([line.split(" ")[1] for line in found], ["dependencies.a", "profile", "a", "z"])

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
