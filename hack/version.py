#!/usr/bin/env python3
"""version.py: print the version, which is `version` of [workspace.package] in Cargo.toml.
version.py --check: fail unless all other files that state the version agree.
version.py VERSION: write another version to all of them, the lock files included.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Of each file, the places that state the version. The first one is the source of all others.
PLACES = (
    ("Cargo.toml", r'^\[workspace\.package\]\nversion = "(.+)"$'),
    ("charts/sluice/Chart.yaml", r"^version: (.+)$"),
    ("charts/sluice/Chart.yaml", r'^appVersion: "(.+)"$'),
    ("README.md", r"^\$ helm install sluice oci://\S+ --version (\S+) "),
)
# Semantic Versioning without build metadata, which a tag of an image cannot contain.
VERSION = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?"


def find(root, file, pattern):
    match = re.search(pattern, (root / file).read_text(), re.MULTILINE)
    if match is None:
        sys.exit(f"version.py: {file} states no version: {pattern}")
    return match


def version(root=ROOT):
    return find(root, *PLACES[0])[1]


def problems(root=ROOT):
    """The places that state another version."""
    wanted = version(root)
    found = ((file, find(root, file, pattern)[1]) for file, pattern in PLACES)
    return [f"{file}: {stated} instead of {wanted}; `hack/version.py {wanted}`" for file, stated in found if stated != wanted]


def write(wanted, root=ROOT):
    for file, pattern in PLACES:
        match, path = find(root, file, pattern), root / file
        text = path.read_text()
        path.write_text(text[: match.start(1)] + wanted + text[match.end(1) :])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("version", nargs="?")
    options = parser.parse_args()
    if options.check:
        found = problems()
        print(*found, sep="\n", end="\n" if found else "")
        return 1 if found else 0
    if options.version is None:
        print(version())
        return 0
    if not re.fullmatch(VERSION, options.version):
        sys.exit(f"version.py: {options.version} is not a version such as 0.2.0 or 0.2.0-rc.1")
    write(options.version)
    for manifest in ("Cargo.toml", "fuzz/libfuzzer/Cargo.toml"):
        command = ["cargo", "update", "--workspace", "--offline", "--quiet", "--manifest-path", manifest]
        subprocess.run(command, cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
