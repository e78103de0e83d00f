"""Tests of the scripts in this folder."""

import pathlib
import tempfile
import unittest

import check_links
import repository_links


class Links(unittest.TestCase):
    def test_wrong_links_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "docs/SUMMARY.md").write_text("- [a](a.md)\n")
            (root / "docs/b.md").write_text("# A `b` & c\n\n```\n# no heading [x](no.md)\n```\n## Twice\n## Twice\n")
            links = ["b.md#a-b--c", "b.md#twice-1", "b.md#twice-2", "b.md#no-heading-xnomd", "c.md", "../../d", "https://e", "#a"]
            (root / "docs/a.md").write_text("# A\n" + "\n".join(f"[x]({link}) `[y](z.md)`" for link in links))
            found = [fault.split(": ", 1)[1] for fault in check_links.check_page(root / "docs/a.md", root)]
            wanted = [
                "b.md#twice-2: there is no such heading",
                "b.md#no-heading-xnomd: there is no such heading",
                "c.md: there is no such file",
                "../../d: there is no such file",
            ]
            self.assertEqual(found, wanted)
            self.assertEqual(list(check_links.check_summary(root)), ["docs/SUMMARY.md lacks b.md"])

    def test_wrong_links_of_the_site_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            site = pathlib.Path(folder)
            (site / "a.html").write_text('<h1 id="x"></h1><a href="b.html#y">1</a><a href="#x">2</a><a href="#z">3</a><img src="c.svg">')
            (site / "b.html").write_text('<a id="y"></a><a href="d.html">4</a>')
            wanted = [
                "a.html: #z: there is no such heading",
                "a.html: c.svg: there is no such file",
                "b.html: d.html: there is no such file",
            ]
            self.assertEqual(list(check_links.check_site(site)), wanted)

    def test_links_that_leave_the_pages_lead_to_the_repository(self):
        text = "[a](b.md#c) [d](../examples/e.yaml) [f](https://g) [h](#i) ![j](../plots/k.svg)"
        files = repository_links.FILES
        self.assertEqual(
            repository_links.rewrite(text, "decisions/l.md"),
            "[a](b.md#c) [d](../examples/e.yaml) [f](https://g) [h](#i) ![j](../plots/k.svg)",
        )
        self.assertEqual(
            repository_links.rewrite(text, "l.md"),
            f"[a](b.md#c) [d]({files}examples/e.yaml) [f](https://g) [h](#i) ![j]({files}plots/k.svg)",
        )


if __name__ == "__main__":
    unittest.main()
