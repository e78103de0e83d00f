#!/usr/bin/env python3
"""Writes the table of values in charts/sluice/README.md from the comments in values.yaml.

readme.py          write it
readme.py --check  fail if it is out of date, or if a value has no place in values.schema.json
"""
import json
import pathlib
import re
import sys

CHART = pathlib.Path(__file__).resolve().parents[2] / "charts/sluice"
BEGIN, END = "<!-- values: begin (make generate) -->", "<!-- values: end -->"
# Maps that are one value for users.
WHOLE = {"labels", "nodeSelector", "resources"}

LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][\w-]*):(?: (?P<value>.*))?$")
ITEM = re.compile(r"^  (?P<name>\S.*?) {2,}(?P<text>\S.*)$")


def flow(lines):
    """Renders a block of YAML on one line, in flow style."""
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    parts, is_list, at = [], False, 0
    while at < len(lines):
        text, nested = lines[at].strip(), []
        while at + 1 < len(lines) and indents[at + 1] > indents[0]:
            at += 1
            nested.append(lines[at])
        if text.startswith("- "):
            is_list, text = True, " ".join([text[2:], *(line.strip() for line in nested)])
        elif nested:
            text = f"{text} {flow(nested)}"
        parts.append(text)
        at += 1
    return ("[%s]" if is_list else "{%s}") % ", ".join(parts)


def meaning(comment):
    """Joins the lines of a comment. Indented lines with a name and a text are the choices of the value."""
    sentences, choices = [], []
    for line in comment:
        item = ITEM.match(line)
        if item:
            choices.append(f"`{item['name']}`: {item['text']}")
        elif line.startswith("  "):
            if choices:
                choices[-1] += f" {line.strip()}"
            else:
                sentences.append(f"`{line.strip()}`")
        elif choices:
            choices.append(line.strip())
        else:
            sentences.append(line.strip())
    return "<br>".join(filter(None, [" ".join(sentences), *choices])).replace("|", "\\|")


def values(text):
    """Yields the path, the default and the meaning of every value."""
    lines = text.splitlines()
    path, comment, at = [], [], 0
    while at < len(lines):
        line = lines[at]
        at += 1
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped[1:].removeprefix(" "))
            if comment[0].startswith("- ") and not comment[-1].startswith(("- ", "  ")):
                # The comment so far was an example of the value above it.
                comment = comment[-1:]
            continue
        found = LINE.match(line)
        if not found:
            comment = []
            continue
        depth, key, value = len(found["indent"]) // 2, found["key"], found["value"]
        path = [*path[:depth], key]
        if value is None:
            block = []
            inner = at
            while inner < len(lines) and (is_below(lines[inner], found["indent"])):
                block.append(lines[inner])
                inner += 1
            if key in WHOLE or block[0].lstrip().startswith("- "):
                value = flow([line for line in block if not line.lstrip().startswith("#")])
                at = inner
        if value is not None or comment:
            yield ".".join(path), value, meaning(comment)
        comment = []


def is_below(line, indent):
    return line.startswith(f"{indent}  ") or line.startswith(f"{indent}- ")


def table(text):
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, value, text in values(text):
        default = f"`{value}`" if value is not None else ""
        rows.append(" | ".join([f"| `{path}`", default, text]).rstrip() + " |")
    return "\n".join(rows)


def in_schema(schema, path):
    """Reports whether the schema names every part of a path, or allows any name there."""
    root = schema
    for name in path.split("."):
        while "$ref" in schema:
            schema = root["definitions"][schema["$ref"].rsplit("/", 1)[1]]
        if name in schema.get("properties", {}):
            schema = schema["properties"][name]
        else:
            return False
    return True


def main():
    readme = CHART / "README.md"
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    unknown = [path for path, _, _ in values(text) if not in_schema(schema, path)]
    if unknown:
        sys.exit(f"charts/sluice/values.schema.json lacks {', '.join(unknown)}")
    undocumented = [path for path, _, meaning in values(text) if not meaning]
    if undocumented:
        sys.exit(f"charts/sluice/values.yaml has no comment above {', '.join(undocumented)}")
    before = readme.read_text()
    head, rest = before.split(BEGIN)
    after = f"{head}{BEGIN}\n{table(text)}\n{END}{rest.split(END)[1]}"
    if sys.argv[1:] == ["--check"]:
        if before != after:
            sys.exit("charts/sluice/README.md does not match values.yaml: run `make generate`")
    else:
        readme.write_text(after)


if __name__ == "__main__":
    main()
