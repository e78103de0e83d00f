#!/usr/bin/env python3
"""import-circles.py [--root FOLDER] [--list FOLDER] [CRATE...]: find circles of imports between the files of a crate.

File A uses file B when A names an item that B defines: in a use statement or in the code, straight or through
re-exports. Declaring a module is no use of it. Without CRATE, all crates of the repository are checked. With
--list, prints what the files below FOLDER use instead, as `file:line -> file (path)`.
"""

import argparse
import sys
from collections import deque
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from rust_modules import Crate  # noqa: E402

# Beyond this the smaller circles have to be opened first anyway.
MOST_PRINTED = 25


def strong_components(graph):
    """Groups of files that all reach each other (Tarjan, without recursion)."""
    index, low, stack, on_stack, components = {}, {}, [], set(), []
    for start in graph:
        if start in index:
            continue
        work = [(start, iter(graph[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(graph[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set()
                    while node not in component:
                        component.add(stack[-1])
                        on_stack.discard(stack.pop())
                    if len(component) > 1:
                        components.append(component)
    return components


def shortest_path(graph, start, end, within):
    """The files from start to end, both included."""
    before, queue = {start: None}, deque([start])
    while queue:
        node = queue.popleft()
        if node == end:
            path = []
            while node is not None:
                path.append(node)
                node = before[node]
            return path[::-1]
        for target in graph[node]:
            if target in within and target not in before:
                before[target] = node
                queue.append(target)
    return []


def circles(edges):
    """For each use that is in a circle, the smallest circle through it: smallest first, each once."""
    graph = {}
    for a, b in sorted(edges):
        graph.setdefault(a, []).append(b)
        graph.setdefault(b, [])
    found = set()
    for component in strong_components(graph):
        for a in component:
            for b in graph[a]:
                if b in component:
                    path = [a, *shortest_path(graph, b, a, component)[:-1]]
                    first = path.index(min(path))
                    found.add(tuple(path[first:] + path[:first]))
    return sorted(found, key=lambda circle: (len(circle), circle))


def crate_folders(root):
    """Folders with a Cargo.toml and sources, those of a nested workspace included."""
    manifests = sorted([*root.glob("*/Cargo.toml"), *root.glob("*/*/Cargo.toml")])
    return [m.parent for m in manifests if (m.parent / "src").is_dir() and "target" not in m.relative_to(root).parts]


def report(root, folder):
    """Prints the circles of one crate and returns their number."""
    crate = Crate(folder)
    edges = crate.edges()
    found = circles(edges)
    short = lambda file: str(file.relative_to(crate.source)) if file.is_relative_to(crate.source) else str(file)
    if not found:
        return 0
    print(f"{folder.relative_to(root)}: {len(found)} circles of imports")
    for circle in found[:MOST_PRINTED]:
        print("  " + " -> ".join(short(file) for file in [*circle, circle[0]]))
        for a, b in zip(circle, [*circle[1:], circle[0]]):
            edge = edges[a, b]
            where = " (only its tests)" if edge.test else ""
            print(f"      {short(a)}:{edge.line} uses {edge.path} of {short(b)}{where}")
    if len(found) > MOST_PRINTED:
        print(f"  and {len(found) - MOST_PRINTED} more")
    return len(found)


def list_edges(root, below):
    """Prints what the files below a folder use."""
    below = below.resolve()
    for folder in crate_folders(root):
        if not (below.is_relative_to(folder) or folder.is_relative_to(below)):
            continue
        for (a, b), edge in sorted(Crate(folder).edges().items()):
            if a.is_relative_to(below):
                print(f"{a.relative_to(root)}:{edge.line} -> {b.relative_to(root)} ({edge.path})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    parser.add_argument("--list", type=Path, metavar="FOLDER")
    parser.add_argument("crates", nargs="*", metavar="CRATE")
    options = parser.parse_args()
    root = options.root.resolve()
    if options.list:
        below = options.list if options.list.exists() else root / options.list
        list_edges(root, below)
        return 0
    folders = [root / crate for crate in options.crates] or crate_folders(root)
    for folder in folders:
        if not (folder / "src").is_dir():
            parser.error(f"{folder} has no src/")
    if sum(report(root, folder) for folder in folders):
        return 1
    print(f"no circles of imports in {', '.join(str(folder.relative_to(root)) for folder in folders)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
