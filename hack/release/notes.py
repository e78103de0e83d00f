#!/usr/bin/env python3
"""notes.py [--unreleased] VERSION: print the section of CHANGELOG.md about this version, without its heading.

The heading is `## VERSION`, and may go on with a date. With --unreleased the section `## Unreleased` is taken if there is
none of this version. Links to files of the repository become links to the tag.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
REPOSITORY = "https://github.com/sluice-dev/sluice"


def section(changelog, title):
    """The text below a heading of the second level, or None."""
    pattern = rf"^## {re.escape(title)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)"
    match = re.search(pattern, changelog, re.MULTILINE | re.DOTALL)
    return match and match[1].strip()


def absolute_links(text, version):
    """The text with links to files of the repository as they are at the tag."""
    return re.sub(r"\]\((?![a-z]+:|#)(?:\./)?([^)\s]+)\)", rf"]({REPOSITORY}/blob/v{version}/\1)", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unreleased", action="store_true")
    parser.add_argument("version")
    options = parser.parse_args()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    text = section(changelog, options.version)
    if text is None and options.unreleased:
        text = section(changelog, "Unreleased")
    if not text:
        sys.exit(f"notes.py: CHANGELOG.md has no section `## {options.version}`, or an empty one")
    print(absolute_links(text, options.version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
