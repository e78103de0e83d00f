#!/usr/bin/env python3
"""A preprocessor of mdBook: links to files of the repository that are no pages of the site lead to the repository."""

import json
import posixpath
import re
import sys

FILES = "https://github.com/sluice-dev/sluice/blob/main/"
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")


def rewrite(text, page):
    """Returns the text of a page, whose path is relative to docs/, with links that leave docs/ replaced."""

    def absolute(link):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link["target"]))
        return link[0] if path.startswith("docs/") else FILES + path + (link["anchor"] or "")

    return LINK.sub(absolute, text)


def visit(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter.get("path"):
                chapter["content"] = rewrite(chapter["content"], chapter["path"])
            visit(chapter["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _context, book = json.load(sys.stdin)
    visit(book["items"])
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
