#!/usr/bin/env python3
"""doc-comments.py [--root FOLDER] [PATH...]: fail on doc comments that begin with a word that makes no plain sentence.

PATH limits the check to files below it.
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from sizes import rust_files  # noqa: E402

OPENINGS = ("Of ", "What ", "That ", "The same", "See the module")
MARKS = ("///", "//!")


def problems(source):
    """Lines at which a doc comment begins badly, and that line."""
    found, inside = [], None
    for number, line in enumerate(source.splitlines(), 1):
        line = line.strip()
        mark = line[:3] if line[:3] in MARKS and line[:4] != "////" else None
        if mark and mark != inside and line[3:].lstrip().startswith(OPENINGS):
            found.append((number, line))
        inside = mark
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    parser.add_argument("paths", nargs="*", default=[""], metavar="PATH")
    options = parser.parse_args()
    root = options.root.resolve()
    below = tuple(path.rstrip("/") for path in options.paths)
    count = 0
    for name in rust_files(root):
        if any(not path or name == path or name.startswith(path + "/") for path in below):
            for number, line in problems((root / name).read_text()):
                count += 1
                print(f"{name}:{number}: {line}")
    if count:
        print(f"{count} doc comments begin with one of {', '.join(repr(opening.strip()) for opening in OPENINGS)}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
