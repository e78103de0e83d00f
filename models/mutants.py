#!/usr/bin/env python3
"""mutants.py [RULE...]: break each rule of the pure functions that the models call, and check that the model notices.

The mutants are in mutants.toml. Each is a change of one line in a copy of the workspace below target/, where it is built and the tests of
its model are run. They must fail. RULE chooses some.
"""

import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "models-mutants"
CRATES = ("limiter", "store", "models")


def copy():
    """Copies what the models need, with a workspace of these crates alone."""
    tree = COPY / "tree"
    for crate in CRATES:
        shutil.rmtree(tree / crate, ignore_errors=True)
        shutil.copytree(ROOT / crate, tree / crate, ignore=shutil.ignore_patterns("tests", "target"))
    for name in ("Cargo.lock", "rust-toolchain.toml"):
        shutil.copy(ROOT / name, tree / name)
    manifest = (ROOT / "Cargo.toml").read_text().splitlines()
    members = ", ".join(f'"{crate}"' for crate in CRATES)
    manifest = [f"members = [{members}]" if line.startswith("members = ") else line for line in manifest]
    # Profiles of packages that are not there would only be warned of.
    (tree / "Cargo.toml").write_text("\n".join(line for line in manifest if not line.startswith("exclude = ")) + "\n")
    # Their tests are not copied.
    store = tree / "store" / "Cargo.toml"
    store.write_text(store.read_text().replace('[[test]]\nname = "integration"\npath = "tests/main.rs"\n', ""))
    return tree


def run(tree, model):
    """Builds the models, and runs the tests of one. Returns whether they were built, whether they passed, and their output."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(COPY / "target")}
    command = [os.environ.get("CARGO", "cargo"), "test", "--quiet", "-p", "sluice-models", "--lib"]
    built = subprocess.run([*command, "--no-run"], cwd=tree, env=environment, capture_output=True, text=True)
    if built.returncode:
        return False, False, built.stderr
    tested = subprocess.run([*command, "--", f"{model}::"], cwd=tree, env=environment, capture_output=True, text=True)
    return True, tested.returncode == 0, tested.stdout


def main():
    mutants = tomllib.loads((ROOT / "models" / "mutants.toml").read_text())["mutant"]
    chosen = [mutant for mutant in mutants if not sys.argv[1:] or mutant["rule"] in sys.argv[1:]]
    tree, wrong = copy(), []
    for model in sorted({mutant["model"] for mutant in chosen}):
        built, passed, output = run(tree, model)
        if not (built and passed):
            sys.exit(f"the tests of {model} fail without a mutant:\n{output}")
    for mutant in chosen:
        path, start = tree / mutant["file"], time.monotonic()
        source = path.read_text()
        path.write_text(source.replace(mutant["before"], mutant["after"]))
        built, passed, output = run(tree, mutant["model"])
        path.write_text(source)
        outcome = "does not compile" if not built else "survived" if passed else "caught"
        print(f"{outcome}: {mutant['rule']} in {mutant['file']} ({time.monotonic() - start:.0f} s)", flush=True)
        if outcome != "caught":
            wrong.append(mutant["rule"])
            print(output[-2000:], flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - len(wrong)} caught")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
