#!/usr/bin/env python3
"""sizes.py [--root FOLDER]: fail on Rust files with too many lines, and on comments that are too wide.

Looks at the files that git tracks or would track. Prints the median length. Of lines, only those of comments
count, which rustfmt does not break; one with an address may be as wide as that.
"""

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

MOST_LINES = 600
MOST_COLUMNS = 140
COMMENT = re.compile(r"\s*//(?!.*https?://)")


def rust_files(root):
    """Paths below the root, relative to it."""
    command = ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "*.rs"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in set(names) if name and (root / name).exists())


def problems(files):
    """What is too large, from the text of each file."""
    found = []
    for name, text in sorted(files.items()):
        lines = text.splitlines()
        if len(lines) > MOST_LINES:
            found.append(f"{name}: {len(lines)} lines, of {MOST_LINES} at most: split it")
        for number, line in enumerate(lines, 1):
            if len(line) > MOST_COLUMNS and COMMENT.match(line):
                found.append(f"{name}:{number}: {len(line)} columns, of {MOST_COLUMNS} at most")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    root = parser.parse_args().root.resolve()
    files = {name: (root / name).read_text() for name in rust_files(root)}
    found = problems(files)
    print(*found, sep="\n", end="\n" if found else "")
    if files:
        median = statistics.median(text.count("\n") for text in files.values())
        print(f"{len(files)} Rust files, median length {median:.0f} lines")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
