#!/usr/bin/env python3
"""circles.py [--root FOLDER] [--folders] [CRATE...]: find circles of imports between the files, and the folders, of a crate.

A file uses another one when it names an item of it in a use statement or in the code, straight or through re-exports.
Declaring a module is no use of it, and what tests use does not count. A folder uses
another one when a file below it does; `x.rs` beside `x/` belongs to it. A folder and the folders within it are one.
Reads paths, not types: what only a macro writes is not seen. With --folders, prints what each folder uses instead.
"""

import argparse
import re
import sys
from collections import defaultdict
from functools import cached_property
from pathlib import Path

TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|[bc]?r(#*)".*?"\1|[bc]?"(?:\\.|[^"\\])*"', re.DOTALL)
OF_TESTS = r"#\[cfg\([^\]]*\btest\b[^\]]*\)\]\s*(?:pub(?:\([^)]*\))? )?mod (\w+)"
TESTS = re.compile(OF_TESTS + r" \{.*", re.DOTALL)
TEST_FILE = re.compile(OF_TESTS + ";")
INLINE = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?mod \w+ \{\n.*?^\1\}", re.DOTALL | re.MULTILINE)
VISIBILITY = re.compile(r"pub\(in [^)]*\)")
USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
PATH = re.compile(r"\b((?:crate|super|self)(?:::\w+)+)")
ITEM = r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+%s\b"


def blank(match):
    """Spaces in place of a text, with its line breaks."""
    return re.sub(r"[^\n]", " ", match[0])


def leaves(tree, before=()):
    """The paths of a use statement, each with the name that it gets."""
    head, braces, rest = tree.strip().partition("{")
    path = [*before, *filter(None, re.sub(r"\s", " ", head).strip().removesuffix("::").split("::"))]
    if not braces:
        name = path[-1].split(" as ")[-1].strip()
        yield [part.split(" as ")[0].strip() for part in path], name
        return
    depth, start = 0, 0
    for at, mark in enumerate(rest):
        depth += (mark == "{") - (mark == "}")
        if (mark == "," and depth == 0) or depth < 0:
            if rest[start:at].strip():
                yield from leaves(rest[start:at], path)
            start = at + 1


class Module:
    """A file of a crate."""

    def __init__(self, file):
        self.file = file
        source = VISIBILITY.sub("pub", TEXT.sub(blank, file.read_text()))
        self.tests = set(TEST_FILE.findall(source))
        # A module inside the file is a part of it.
        self.source = INLINE.sub(lambda match: re.sub(r"\bsuper::", "self::", match[0]), TESTS.sub("", source))

    @cached_property
    def uses(self):
        """Line, path, name and whether others may import it, of each use statement and of each path in the code."""
        found = []
        for match in USE.finditer(self.source):
            line = self.source.count("\n", 0, match.start()) + 1
            found += [(line, path, name, bool(match[1])) for path, name in leaves(match[2])]
        code = USE.sub(blank, self.source)
        for match in PATH.finditer(code):
            found.append((code.count("\n", 0, match.start()) + 1, match[1].split("::"), None, False))
        return found


class Crate:
    def __init__(self, folder):
        self.source = folder / "src"
        self.modules = {self.name(file): Module(file) for file in sorted(self.source.rglob("*.rs"))}
        self.tests = {(*name, test) for name, module in self.modules.items() for test in module.tests}

    def name(self, file):
        parts = file.relative_to(self.source).with_suffix("").parts
        return parts[: -1 if parts[-1] in ("mod", "lib", "main") else None]

    def resolve(self, module, path, seen=()):
        """The module whose file has what a path names; None for another crate's."""
        path = [part for part in path if part != "self"]
        if path and path[0] == "crate":
            at, rest = (), path[1:]
        elif path and path[0] != "super" and (*module, path[0]) not in self.modules:
            return None
        else:
            ups = next((n for n, part in enumerate(path) if part != "super"), len(path))
            at, rest = module[: len(module) - ups], path[ups:]
        while rest and (*at, rest[0]) in self.modules:
            at, rest = (*at, rest[0]), rest[1:]
        if not rest or at not in self.modules or (at, rest[0]) in seen:
            return at if at in self.modules else None
        if not re.search(ITEM % re.escape(rest[0]), self.modules[at].source):
            for _, target, name, exported in self.modules[at].uses:
                if exported and name in (rest[0], "*"):
                    tail = rest if name == "*" else rest[1:]
                    target = target[:-1] if name == "*" else target
                    found = self.resolve(at, [*target, *tail], (*seen, (at, rest[0])))
                    if found and (name != "*" or found != at):
                        return found
        return at

    def edges(self):
        """Pairs of modules -> line and path of the first use."""
        found = {}
        for name, module in self.modules.items():
            if any(name[:n] in self.tests for n in range(1, len(name) + 1)):
                continue
            for line, path, _, _ in module.uses:
                target = self.resolve(name, path)
                if target is not None and target != name:
                    found.setdefault((name, target), (line, "::".join(path)))
        return found


def circles(edges):
    """Groups of nodes that all reach each other."""
    graph = defaultdict(set)
    for a, b in edges:
        graph[a].add(b)
    reach = {}
    for start in list(graph):
        reach[start], todo = set(), [start]
        while todo:
            new = graph.get(todo.pop(), set()) - reach[start]
            reach[start] |= new
            todo += new
    groups = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in reach if a in reach[a]}
    return sorted((sorted(group) for group in groups), key=lambda group: (len(group), group))


def folder_edges(crate, edges):
    """Pairs of folders side by side -> a use by a file of a file."""
    folders = {name[:n] for name in crate.modules for n in range(1, len(name))}
    found = {}
    for a, b in edges:
        n = next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        pair = (a[: n + 1], b[: n + 1])
        if len(a) > n and len(b) > n and folders.issuperset(pair):
            found.setdefault(pair, (a, b))
    return found


def report(crate, title, kind, pairs, use_of):
    groups = circles(pairs)
    for group in groups:
        print(f"{title}: {len(group)} {kind} use each other: {', '.join('/'.join(name) or 'lib' for name in group)}")
        for a, b in sorted(pair for pair in pairs if set(pair) <= set(group)):
            a, b = use_of(a, b)
            line, path = crate.edges[a, b]
            print(f"    {crate.modules[a].file.relative_to(crate.source)}:{line} uses {path} of "
                  f"{crate.modules[b].file.relative_to(crate.source)}")
    return len(groups)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    parser.add_argument("--folders", action="store_true")
    parser.add_argument("crates", nargs="*", metavar="CRATE")
    options = parser.parse_args()
    root, count = options.root.resolve(), 0
    manifests = sorted([*root.glob("*/Cargo.toml"), *root.glob("*/*/Cargo.toml")])
    found = [m.parent for m in manifests if (m.parent / "src").is_dir() and "target" not in m.parts]
    for folder in [root / name for name in options.crates] or found:
        crate, title = Crate(folder), str(folder.relative_to(root))
        crate.edges = crate.edges()
        folders = folder_edges(crate, crate.edges)
        if options.folders:
            for a, b in sorted(folders):
                print(f"{title}: {'/'.join(a)} -> {'/'.join(b)}")
            continue
        count += report(crate, title, "files", crate.edges, lambda a, b: (a, b))
        count += report(crate, title, "folders", folders, lambda a, b: folders[a, b])
    if not count and not options.folders:
        print("no files and no folders of a crate use each other")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
