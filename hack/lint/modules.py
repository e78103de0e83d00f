#!/usr/bin/env python3
"""modules.py [--root FOLDER]: fail on Rust files that no program or library contains, such as tests that never run.

A file belongs to one if Cargo begins there (`main.rs`, `lib.rs`, `build.rs`, or a path in a `Cargo.toml`), or if the file above it declares
it with `mod`. Of crates that do not set `autotests = false`, Cargo also begins with each file in `tests/`, and always in `examples/`,
`benches/` and `bin/`.
"""

import argparse
import re
import sys
from pathlib import Path, PurePosixPath

sys.dont_write_bytecode = True
from sizes import rust_files  # noqa: E402

DECLARED = re.compile(r'^\s*(?:#\[path = "([^"]+)"\]\s*)?(?:pub(?:\([^)]*\))? )?mod (\w+);', re.MULTILINE)
PATH = re.compile(r'^path = "([^"]+\.rs)"', re.MULTILINE)


def normal(path):
    """A path without `..`."""
    parts = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return PurePosixPath(*parts)


def forgotten(files, manifests):
    """The files that nothing contains, given their texts, and the texts of the manifests."""
    contained, automatic = set(), {"examples", "benches", "bin"}
    for name, text in files.items():
        file = PurePosixPath(name)
        for path, module in DECLARED.findall(text):
            # Where Cargo begins, modules are beside the file. The compiler finds those that are missing.
            places = (below / end for below in (file.parent, file.with_suffix("")) for end in (f"{module}.rs", f"{module}/mod.rs"))
            contained.update(str(normal(place)) for place in ([file.parent / path] if path else places))
    for name, text in manifests.items():
        contained.update(str(PurePosixPath(name).parent / path) for path in PATH.findall(text))

    def begins(file):
        if file.stem in ("main", "lib", "build") or file.parent.name in automatic:
            return True
        manifest = manifests.get(str(file.parent.parent / "Cargo.toml"))
        return file.parent.name == "tests" and manifest is not None and "autotests = false" not in manifest

    return sorted(name for name in files if name not in contained and not begins(PurePosixPath(name)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    root = parser.parse_args().root.resolve()
    files = {name: (root / name).read_text() for name in rust_files(root)}
    folders = {parent for name in files for parent in PurePosixPath(name).parents}
    manifests = {str(folder / "Cargo.toml"): (root / folder / "Cargo.toml") for folder in folders}
    found = forgotten(files, {name: path.read_text() for name, path in manifests.items() if path.exists()})
    for name in found:
        print(f"{name}: nothing contains this file: declare it with `mod` in the file above it, or remove it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
