#!/usr/bin/env python3
"""rules.py [--root FOLDER]: compare the rules of the models with the code that names them.

A rule has an id. In models/src it is declared as `"id" keeps PROPERTY`, or it is the rule of a mutant in models/mutants.toml. The
code that obeys it says `Rule: id` in a comment. Those of models/src/designs are not built yet, and have no code. Each mutant must still
apply: its text is in its file exactly once.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from sizes import rust_files  # noqa: E402

DECLARED = re.compile(r'"([a-z]+\.[a-z-]+)"\s+keeps\b')
OBEYED = re.compile(r"\bRule: ([a-z]+\.[a-z-]+)")
MODELS, DESIGNS, MUTANTS = "models/src/", "models/src/designs/", "models/mutants.toml"


def problems(root):
    """What does not fit, one line each."""
    found, existing, designs, obeyed = [], {}, {}, {}
    for name in rust_files(root):
        text = (root / name).read_text()
        if name.startswith(MODELS):
            into = designs if name.startswith(DESIGNS) else existing
            for rule in DECLARED.findall(text):
                if rule in existing or rule in designs:
                    found.append(f"{name}: {rule} is declared twice")
                into[rule] = name
        else:
            for rule in OBEYED.findall(text):
                obeyed.setdefault(rule, []).append(name)
    for mutant in tomllib.loads((root / MUTANTS).read_text())["mutant"]:
        rule, file = mutant["rule"], mutant["file"]
        existing.setdefault(rule, MUTANTS)
        path = root / file
        if not path.is_file() or path.read_text().count(mutant["before"]) != 1:
            found.append(f"{MUTANTS}: the text of the mutant of {rule} is not in {file} exactly once")
        elif file not in obeyed.get(rule, []):
            found.append(f"{file}: no comment says `Rule: {rule}` where its mutant is")
    found += [f"{name}: no code says `Rule: {rule}`" for rule, name in existing.items() if rule not in obeyed]
    for rule, names in obeyed.items():
        if rule in designs:
            found.append(f"{names[0]}: obeys {rule}, so its model is no design: move it out of {DESIGNS}")
        elif rule not in existing:
            found.append(f"{names[0]}: no model has the rule {rule}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    found = problems(parser.parse_args().root.resolve())
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
