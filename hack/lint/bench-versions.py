#!/usr/bin/env python3
"""bench-versions.py [--root FOLDER]: fail unless bench/, a workspace of its own, is built like the root workspace.

Compares the package's version and edition, what both depend on, the lints, the profiles, and the locked versions.
"""

import argparse
import sys
import tomllib
from collections import defaultdict
from pathlib import Path


def compatible(version):
    """The part of a version that tells incompatible releases apart: Cargo may lock one of each."""
    major, minor, patch = version.split(".", 2)
    return major if major != "0" else f"0.{minor}" if minor != "0" else f"0.0.{patch}"


def locked(lock):
    """Locked versions, by name and compatible release."""
    found = defaultdict(set)
    for package in lock["package"]:
        found[package["name"], compatible(package["version"])].add(package["version"])
    return found


def built(profiles, lock):
    """The profiles without packages that are not in a lock file."""
    names = {"*", *(package["name"] for package in lock["package"])}
    return {
        name: {
            key: {package: how for package, how in value.items() if package in names} if key == "package" else value
            for key, value in profile.items()
        }
        for name, profile in profiles.items()
    }


def problems(root, root_lock, bench, bench_lock):
    """What differs, from the parsed manifests and lock files."""
    found = []

    def compare(what, ours, theirs):
        if ours != theirs:
            found.append(f"bench/Cargo.toml: {what} is {theirs}, in the root it is {ours}")

    workspace = root["workspace"]
    for name in ("version", "edition", "rust-version"):
        compare(f"package.{name}", workspace["package"][name], bench["package"].get(name))
    for name, wanted in bench["dependencies"].items():
        ours = workspace["dependencies"].get(name)
        if ours is not None and "path" not in wanted:
            compare(f"dependencies.{name}", ours, wanted)
    compare("lints", workspace["lints"], bench.get("lints"))
    compare("profile", built(root["profile"], bench_lock), bench.get("profile"))
    theirs = locked(bench_lock)
    for key, versions in locked(root_lock).items():
        if key in theirs and theirs[key] != versions:
            name = key[0]
            both = f"{', '.join(sorted(theirs[key]))} instead of {', '.join(sorted(versions))}"
            fix = f"cargo update --manifest-path bench/Cargo.toml {name} --precise {max(versions)}"
            found.append(f"bench/Cargo.lock: {name} {both}; `{fix}`")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    root = parser.parse_args().root
    files = ("Cargo.toml", "Cargo.lock", "bench/Cargo.toml", "bench/Cargo.lock")
    found = problems(*(tomllib.loads((root / file).read_text()) for file in files))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
