#!/usr/bin/env python3
"""lines.py [--root FOLDER] [--write]: count the production lines of each crate, and compare them with hack/lint/lines.tsv.

Production lines are those of Rust and Lua without blank lines, comments, what is compiled for tests only, and the folders of
tests, benchmarks and fuzzing. The table goes down, or up only in a commit whose message says which feature needs it: --write
writes what there is now.
"""

import argparse
import re
import sys
from pathlib import Path

CRATES = ("limiter", "store", "config", "crds", "host", "operator", "engine", "sidecar", "service", "cli")
FOR_TESTS = re.compile(r"\s*#\[cfg\((?:all\()?test\b")
MODULE = re.compile(r"\s*(?:pub(?:\([^)]*\))? )?mod (\w+);")
TABLE = Path("hack/lint/lines.tsv")


def code_lines(text, comment):
    """The lines that are neither blank nor a comment."""
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(comment)]


def without_tests(lines):
    """The lines of Rust without items for tests, and the names of the modules that are for tests only."""
    kept, modules, at = [], set(), 0
    while at < len(lines):
        if not FOR_TESTS.match(lines[at]):
            kept.append(lines[at])
            at += 1
            continue
        at += 1
        # Further attributes of the item.
        while at < len(lines) and lines[at].lstrip().startswith("#["):
            at += 1
        if at < len(lines) and (module := MODULE.match(lines[at])):
            modules.add(module.group(1))
        indent = len(lines[at]) - len(lines[at].lstrip()) if at < len(lines) else 0
        # rustfmt ends an item at the column where it begins.
        while at < len(lines):
            line = lines[at]
            at += 1
            if len(line) - len(line.lstrip()) == indent and line.rstrip().endswith(("}", ";", ",", "};")):
                break
    return kept, modules


def rust_lines(source):
    """The number of production lines of Rust below a folder."""
    files = {path: without_tests(code_lines(path.read_text(), "//")) for path in sorted(source.rglob("*.rs"))}
    for_tests = set()
    for path, (_, modules) in files.items():
        folder = path.parent if path.name in ("lib.rs", "main.rs", "mod.rs") else path.with_suffix("")
        for module in modules:
            for_tests |= {folder / f"{module}.rs", folder / module}
    is_for_tests = lambda path: path in for_tests or any(parent in for_tests for parent in path.parents)
    return sum(len(kept) for path, (kept, _) in files.items() if not is_for_tests(path))


def counted(root):
    """The number of production lines of each crate, and of Lua."""
    rows = {crate: rust_lines(root / crate / "src") for crate in CRATES if (root / crate / "src").is_dir()}
    scripts = sorted((root / "store" / "src").rglob("*.lua"))
    rows["Lua"] = sum(len(code_lines(path.read_text(), "--")) for path in scripts)
    return rows


def table(rows):
    """The table as a text."""
    rust = sum(number for name, number in rows.items() if name != "Lua")
    return "".join(f"{name}\t{number}\n" for name, number in [*rows.items(), ("Rust together", rust)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    root, now = arguments.root.resolve(), table(counted(arguments.root.resolve()))
    if arguments.write:
        (root / TABLE).write_text(now)
        return 0
    if (root / TABLE).exists() and (root / TABLE).read_text() == now:
        return 0
    before = (root / TABLE).read_text() if (root / TABLE).exists() else ""
    known = dict(line.split("\t") for line in before.splitlines())
    for name, number in (line.split("\t") for line in now.splitlines()):
        if known.get(name) != number:
            print(f"{TABLE}: {name} has {number} production lines, and the table says {known.get(name, 'nothing')}")
    print("run hack/lint/lines.py --write. If a number rises, the message of the commit says which feature needs it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
