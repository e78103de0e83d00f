#!/usr/bin/env python3
"""Checks the links between the pages of the repository: files exist, and so do the headings that links name.

check_links.py [SITE]: with the folder of the built site, also the links of its pages. Links to other hosts are not followed.
"""

import html.parser
import pathlib
import posixpath
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^\s*```.*?^\s*```\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?P<target><[^>]*>|[^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*$", re.MULTILINE)


def pages(root):
    """Returns the pages in Markdown."""
    folders = [root, root / "charts/sluice", root / "tests/node"]
    found = [path for folder in folders for path in folder.glob("*.md")]
    return sorted([*found, *(root / "docs").rglob("*.md")])


def anchors(text):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = {}
    for heading in HEADING.finditer(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"]).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = found.get(name, 0)
        found[name] = number + 1
        yield f"{name}-{number}" if number else name


def check_page(path, root):
    """Yields what is wrong with the links of a page."""
    text = path.read_text()
    for link in LINK.finditer(CODE.sub("", FENCE.sub("", text))):
        target = urllib.parse.unquote(link["target"].strip("<>"))
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"{path.relative_to(root)}: {target}: there is no such file"
        elif not file.is_relative_to(root):
            yield f"{path.relative_to(root)}: {target} leaves the repository"
        elif anchor and file.suffix == ".md" and anchor not in set(anchors(file.read_text())):
            yield f"{path.relative_to(root)}: {target}: there is no such heading"


def check_summary(root):
    """Yields the pages that the table of contents of the site lacks."""
    listed = set(LINK_TARGET.findall((root / "docs/SUMMARY.md").read_text()))
    for page in sorted((root / "docs").rglob("*.md")):
        name = page.relative_to(root / "docs").as_posix()
        if name != "SUMMARY.md" and name not in listed:
            yield f"docs/SUMMARY.md lacks {name}"


LINK_TARGET = re.compile(r"\]\(([^)\s#]+)\)")


class Page(html.parser.HTMLParser):
    """The links and anchors of a page of the site."""

    def __init__(self):
        super().__init__()
        self.links, self.anchors = [], set()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(filter(None, [attributes.get("id"), attributes.get("name") if tag == "a" else None]))
        link = attributes.get("href" if tag in ("a", "link") else "src")
        if link:
            self.links.append(link)


def check_site(site):
    """Yields what is wrong with the links of the built site."""
    read = {}
    for path in sorted(site.rglob("*.html")):
        page = Page()
        page.feed(path.read_text())
        read[path.relative_to(site).as_posix()] = page
    for name, page in read.items():
        # These are for a web server, and for readers without scripts.
        if name in ("404.html", "print.html", "toc.html"):
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = urllib.parse.unquote(parts.path)
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if target not in read and not (site / target).exists():
                yield f"{name}: {link}: there is no such file"
            elif parts.fragment and target in read and urllib.parse.unquote(parts.fragment) not in read[target].anchors:
                yield f"{name}: {link}: there is no such heading"


def main():
    wrong = [*check_summary(ROOT), *(fault for page in pages(ROOT) for fault in check_page(page, ROOT))]
    if len(sys.argv) > 1:
        wrong += check_site(pathlib.Path(sys.argv[1]))
    print("\n".join(wrong) or f"all links of {len(pages(ROOT))} pages lead somewhere")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
