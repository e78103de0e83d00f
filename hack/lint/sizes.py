#!/usr/bin/env python3
"""sizes.py [--root FOLDER]: fail on folders with too many Rust files and on Rust files with too many lines.

Looks at the files that git tracks or would track. Prints the median length.
"""

import argparse
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

MOST_FILES = 15
MOST_LINES = 600


def rust_files(root):
    """Paths below the root, relative to it."""
    command = ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "*.rs"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in set(names) if name and (root / name).exists())


def problems(lengths):
    """What is too large, from the number of lines of each file."""
    found = []
    folders = Counter(str(PurePosixPath(name).parent) for name in lengths)
    for folder, count in sorted(folders.items()):
        if count > MOST_FILES:
            found.append(f"{folder}: {count} Rust files, of {MOST_FILES} at most: give it subfolders")
    for name, lines in sorted(lengths.items()):
        if lines > MOST_LINES:
            found.append(f"{name}: {lines} lines, of {MOST_LINES} at most: split it")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    root = parser.parse_args().root.resolve()
    lengths = {name: (root / name).read_bytes().count(b"\n") for name in rust_files(root)}
    found = problems(lengths)
    print(*found, sep="\n", end="\n" if found else "")
    if lengths:
        print(f"{len(lengths)} Rust files, median length {statistics.median(lengths.values()):.0f} lines")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
