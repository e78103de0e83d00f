#!/usr/bin/env python3
"""pins.py [--root FOLDER]: fail unless everything that scripts, workflows and manifests fetch has an exact version.

Where the ecosystem has checksums, they must be in the repository: Cargo.lock, go.sum, package-lock.json, hashes of Python
packages, and the commits of actions. Packages of the distribution are excepted: tests/node/apt.sh says why.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

# A command, and what must be in its line. All of them download something.
COMMANDS = (
    (r"\bcargo install\b(?!.*--path)", r"--locked\b.*--version\b|--version\b.*--locked\b", "`--locked` and `--version`"),
    (r"\bpip3? (install|download)\b", r"--require-hashes\b", "`--require-hashes`"),
    (r"\bgo build\b", r"-mod=readonly\b", "`-mod=readonly`"),
    (r"\bgo (install|run) \S+@", r"@v\d+\.\d+\.\d+\b", "an exact version"),
    (r"\bgo get\b", r"(?!)", "a go.mod with a go.sum instead"),
    (r"\bnpm (i|install|add)\b|\bnpx\b", r"(?!)", "`npm ci` instead"),
    (r"\bmvn\b(?!.*\$)", r":\d+(\.\d+)+:", "the plugin's version"),
    (r"\b(curl|wget)\b.*\bhttps?://(?!127\.0\.0\.1|localhost|\[|\$)", r"(?!)", "no downloads by URL"),
)


def script_problems(text):
    """Numbers of lines that fetch something without an exact version, and what they lack."""
    found, number = [], 1
    for line in re.split(r"(?<!\\)\n", text):
        code = re.sub(r"(^|\s)#.*", "", line)
        for command, wanted, name in COMMANDS:
            if re.search(command, code, re.DOTALL) and not re.search(wanted, code, re.DOTALL):
                found.append((number, f"needs {name}: {code.strip()}"))
        number += line.count("\n") + 1
    return found


def workflow_problems(text):
    """Numbers of lines with an action whose commit, or the version in words, is missing."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        action = re.search(r"\buses: (\S+)(.*)", line)
        if action and not action[1].startswith("./"):
            if not (re.search(r"@[0-9a-f]{40}$", action[1]) and re.match(r" # v\d+\.\d+\.\d+$", action[2])):
                found.append((number, f"needs a commit, and its version as a comment: {action[1]}"))
    return found


def requirement_problems(text):
    """Numbers of lines with a Python package without an exact version or without a hash."""
    found, number = [], 1
    for line in re.split(r"(?<!\\)\n", text):
        if line.strip() and not line.lstrip().startswith("#"):
            if not re.match(r"\S+==\S+ ", line) or "--hash=sha256:" not in line:
                found.append((number, f"needs `==VERSION` and hashes: {line.split()[0]}"))
        number += line.count("\n") + 1
    return found


def image_problems(text):
    """Numbers of lines with a base image without a digest, in a Dockerfile."""
    bases = ((number, line.split()) for number, line in enumerate(text.splitlines(), 1) if re.match(r"(?i)from\s", line))
    fixed = lambda base: base == "scratch" or re.search(r"@sha256:[0-9a-f]{64}$", base)
    return [(number, f"needs a digest: {words[1]}") for number, words in bases if not fixed(words[1])]


def problems(files):
    """What is wrong in the files, which is a dict from path to text."""
    for path, text in files.items():
        name = path.rsplit("/", 1)[-1]
        folder = path.removesuffix(name)
        if name.endswith(".sh") or name == "Makefile" or path.startswith(".ci/"):
            found = script_problems(text)
        elif path.startswith(".github/workflows/"):
            found = workflow_problems(text) + script_problems(text)
        elif name == "Dockerfile":
            found = image_problems(text)
        elif re.fullmatch(r"requirements.*\.txt", name):
            found = requirement_problems(text)
        elif name == "go.mod" and re.search(r"^require\b", text, re.MULTILINE) and f"{folder}go.sum" not in files:
            found = [(1, "needs a go.sum")]
        elif name == "Cargo.toml" and re.search(r"^\[workspace\]$", text, re.MULTILINE) and f"{folder}Cargo.lock" not in files:
            found = [(1, "needs a Cargo.lock")]
        elif name == "package.json" and f"{folder}package-lock.json" not in files:
            found = [(1, "needs a package-lock.json")]
        else:
            found = []
        yield from (f"{path}:{number}: {problem}" for number, problem in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    root = parser.parse_args().root
    command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, text=True).split("\0")
    files = {}
    for name in filter(None, names):
        try:
            files[name] = (root / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
    found = list(problems(files))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
