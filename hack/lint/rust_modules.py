"""Reads the modules of a Rust crate and finds which of its files use which.

A small lexer and parser, not a compiler: they see modules, items, imports and paths, and nothing of types or macros'
output. A name that cannot be found in a module of the crate is taken to be made by a macro in that module's file.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*)
    | (?P<comment>/\*)
    | (?P<string>[bc]?r(?P<hashes>\#*)".*?"(?P=hashes) | [bc]?"(?:\\.|[^"\\])*")
    | (?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^\\'])')
    | (?P<lifetime>'[A-Za-z_]\w*)
    | (?P<word>(?:r\#)?[A-Za-z_]\w*)
    | (?P<number>\d\w*)
    | (?P<mark>::|.)
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_EDGE = re.compile(r"/\*|\*/")
ITEMS = {"fn", "struct", "enum", "union", "trait", "type", "const", "static"}
NOT_A_NAME = ITEMS | {"mut", "unsafe", "async", "extern", "_", "impl", "for", "where", "dyn"}
ROOTS = {"crate", "self", "super"}


@dataclass
class Token:
    kind: str
    text: str
    line: int


@dataclass
class Use:
    """A path in the source; a use statement's, or one in the code."""

    path: tuple
    line: int
    exported: bool = False  # `pub use`
    imported: bool = False  # any `use`
    glob: bool = False


@dataclass(eq=False)
class Module:
    file: Path
    parent: "Module | None"
    folder: Path  # where the files of its child modules are
    test: bool = False
    children: dict = field(default_factory=dict)
    items: set = field(default_factory=set)
    imports: dict = field(default_factory=dict)  # name -> paths
    local_imports: dict = field(default_factory=dict)  # those inside functions
    globs: list = field(default_factory=list)
    uses: list = field(default_factory=list)
    words: set = field(default_factory=set)
    macros_called: dict = field(default_factory=dict)  # name -> line


@dataclass(frozen=True)
class Edge:
    """One file's use of another one."""

    line: int
    path: str
    test: bool  # only in a module of tests


def tokens(source):
    """The tokens of a file without its comments; strings keep their content, so that #[path] can be read."""
    found, at, line = [], 0, 1
    while at < len(source):
        match = TOKEN.match(source, at)
        kind, text, end = match.lastgroup, match.group(), match.end()
        if match.group("string") is not None:
            kind = "string"
        if kind == "comment":
            depth = 1
            while depth:
                edge = COMMENT_EDGE.search(source, end)
                if edge is None:
                    end = len(source)
                    break
                depth += 1 if edge.group() == "/*" else -1
                end = edge.end()
            text = source[at:end]
        elif kind != "space":
            found.append(Token(kind, text.removeprefix("r#") if kind == "word" else text, line))
        line += text.count("\n") if kind != "mark" else 0
        at = end
    return found


class Crate:
    """All modules below the root files of one crate: src/lib.rs, src/main.rs and src/bin/."""

    def __init__(self, folder):
        self.source = Path(folder) / "src"
        manifest = Path(folder) / "Cargo.toml"
        name = re.search(r'^name *= *"([^"]+)"', manifest.read_text(), re.MULTILINE) if manifest.exists() else None
        self.name = name.group(1).replace("-", "_") if name else None
        self.macros = {}  # macro_rules! name -> file
        self.modules = []
        self.library = None
        roots = [self.source / "lib.rs", self.source / "main.rs", *sorted(self.source.glob("bin/*.rs"))]
        for root in filter(Path.exists, roots):
            module = self._read(root, None, root.parent, False)
            if root.name == "lib.rs":
                self.library = module

    def _read(self, file, parent, folder, test):
        module = Module(file, parent, folder, test)
        self.modules.append(module)
        Parser(self, module, tokens(file.read_text())).run()
        return module

    def child(self, parent, name, test, path):
        """Reads the file that `mod name;` names."""
        if path:
            file = parent.file.parent / path
            folder = file.parent if file.name == "mod.rs" else file.with_suffix("")
        else:
            file, folder = parent.folder / f"{name}.rs", parent.folder / name
            if not file.exists():
                file = folder / "mod.rs"
        if file.exists():
            parent.children[name] = self._read(file, parent, folder, test or parent.test)

    def edges(self):
        """Pairs of files -> the first use, by the file that uses and the file that is used."""
        found = {}
        for module in self.modules:
            for use in module.uses:
                for file in self._files_of(module, use):
                    self._add(found, module, file, Edge(use.line, self._text(use), module.test))
            for name, line in module.macros_called.items():
                if name in self.macros and name not in module.imports:
                    self._add(found, module, self.macros[name], Edge(line, f"{name}!", module.test))
        return found

    @staticmethod
    def _text(use):
        return "::".join(use.path) + ("::*" if use.glob else "")

    @staticmethod
    def _add(found, module, file, edge):
        if file == module.file:
            return
        known = found.get((module.file, file))
        # A use outside of tests is the one to report.
        if known is None or (edge.test, edge.line) < (known.test, known.line):
            found[module.file, file] = edge

    def _files_of(self, module, use):
        targets = self.resolve(module, use.path)
        if use.glob:
            return set().union(*(self._files_of_glob(module, use, kind, target) for kind, target in targets))
        files = {target for kind, target in targets if kind == "item"}
        if not files and not use.imported:
            return {target.file for kind, target in targets if kind == "module"}
        # Importing a module is no use of it yet: the paths through it are. Exporting it is one.
        if use.exported:
            files |= {target.file for kind, target in targets if kind == "module"}
        return files

    def _files_of_glob(self, module, use, kind, target):
        if kind == "item":  # the variants of an enum
            return {target}
        files = set()
        for word in module.words:
            files |= {found for kind, found in self.lookup(target, word) if kind == "item"}
        if use.exported or not files:
            files.add(target.file)
        return files

    def resolve(self, module, path, seen=frozenset()):
        """What a path names: modules, and files that define an item. Nothing for a path into another crate."""
        start, rest = module, list(path)
        if rest[0] == "crate":
            while start.parent:
                start = start.parent
            rest.pop(0)
        elif rest[0] in ("self", "super"):
            while rest and rest[0] in ("self", "super"):
                if rest.pop(0) == "super":
                    start = start.parent or start
        elif self.name and rest[0] == self.name and self.library and rest[0] not in module.children:
            start = self.library
            rest.pop(0)
        else:
            targets = self.lookup(module, rest[0], seen, local=True)
            return self._descend(targets, rest[1:], seen)
        return self._descend({("module", start)}, rest, seen)

    def _descend(self, targets, rest, seen):
        for segment in rest:
            modules = {target for kind, target in targets if kind == "module"}
            if not modules:
                return targets  # an item's associated function, or a variant
            found = set().union(*(self.lookup(target, segment, seen) for target in modules))
            if not found:
                if segment in self.macros:
                    return {("item", self.macros[segment])}
                return {("item", target.file) for target in modules}
            targets = found
        return targets

    def lookup(self, module, name, seen=frozenset(), local=False):
        """What a name is in a module. A name may be a module and an item at once."""
        if (module, name) in seen:
            return set()
        seen = seen | {(module, name)}
        found = set()
        if name in module.children:
            found.add(("module", module.children[name]))
        if name in module.items:
            found.add(("item", module.file))
        paths = module.imports.get(name, []) + (module.local_imports.get(name, []) if local else [])
        for path in paths:
            found |= self.resolve(module, path, seen)
        if not found:
            for path in module.globs:
                for kind, target in self.resolve(module, path, seen):
                    if kind == "module":
                        found |= self.lookup(target, name, seen)
        return found


class Parser:
    """Fills a module, and the inline modules in it, from the tokens of its file."""

    def __init__(self, crate, module, found):
        self.crate, self.tokens, self.at = crate, found, 0
        self.scopes = [module]  # a module, or None for any other pair of braces
        self.module = module
        self.attributes = ""
        self.exported = False

    def text(self, ahead=0):
        at = self.at + ahead
        return self.tokens[at].text if at < len(self.tokens) else ""

    def word(self, ahead=0):
        at = self.at + ahead
        return at < len(self.tokens) and self.tokens[at].kind == "word"

    def run(self):
        while self.at < len(self.tokens):
            self.step()

    def step(self):
        token, text = self.tokens[self.at], self.text()
        if token.kind == "word":
            self.step_word(token, text)
            return
        if text == "#" and "[" in (self.text(1), self.text(2)):
            self.attributes += self.attribute()
        elif text == "{":
            self.scopes.append(None)
        elif text == "}" and len(self.scopes) > 1:
            self.scopes.pop()
            self.module = next(scope for scope in reversed(self.scopes) if scope)
        if text in ("{", "}", ";"):
            self.attributes, self.exported = "", False
        self.at += 1

    def step_word(self, token, text):
        top = self.scopes[-1] is not None
        if text == "pub":
            self.exported = True
            if self.text(1) == "(" and self.text(2) in ("crate", "self", "super", "in"):
                while self.text() not in (")", ""):
                    self.at += 1
            self.at += 1
        elif text == "use" and self.text(1) != "<":
            self.at += 1
            self.use_tree((), token.line, top)
        elif text == "mod" and self.word(1) and self.text(2) in (";", "{"):
            self.declare_module()
        elif text == "macro_rules" and self.text(1) == "!":
            self.module.items.add(self.text(2))
            self.crate.macros[self.text(2)] = self.module.file
            self.at += 3
        elif text in ITEMS and self.word(1) and self.text(1) not in NOT_A_NAME:
            if top:
                self.module.items.add(self.text(1))
            self.at += 2
        else:
            self.path(token)

    def attribute(self):
        """The text of the attribute that begins here; its tokens are still read for paths."""
        text, depth = "", 0
        for token in self.tokens[self.at + 1 :]:
            text += token.text
            depth += {"[": 1, "]": -1}.get(token.text, 0)
            if token.text == "]" and depth == 0:
                break
        return text

    def declare_module(self):
        name, inline = self.text(1), self.text(2) == "{"
        test = "[cfg(test)]" in self.attributes or "[cfg(all(test," in self.attributes
        path = re.search(r'\[path="([^"]+)"\]', self.attributes)
        self.at += 3
        if inline:
            module = Module(self.module.file, self.module, self.module.folder / name, test or self.module.test)
            self.module.children[name] = module
            self.crate.modules.append(module)
            self.scopes.append(module)
            self.module = module
        else:
            self.crate.child(self.module, name, test, path and path.group(1))
        self.attributes, self.exported = "", False

    def use_tree(self, prefix, line, top):
        """Reads `a::b`, `a::{b, c as d}`, `a::*` after the prefix; stops behind it."""
        path = prefix
        while self.at < len(self.tokens):
            text = self.text()
            if text == "::":
                self.at += 1
            elif text == "{":
                self.at += 1
                while self.text() not in ("}", ""):
                    self.use_tree(path, line, top)
                    if self.text() == ",":
                        self.at += 1
                self.at += 1
                return
            elif text == "*":
                self.add_import(path, None, line, top, glob=True)
                self.at += 1
                return
            elif self.word():
                line = self.tokens[self.at].line
                path += (text,)
                self.at += 1
                if self.text() == "as":
                    self.add_import(path, self.text(1), line, top)
                    self.at += 2
                    return
                if self.text() != "::":
                    self.add_import(path, path[-1], line, top)
                    return
            else:
                # Not a use statement that is understood: one in a macro.
                self.at += 1
                return

    def add_import(self, path, name, line, top, glob=False):
        if len(path) > 1 and path[-1] == "self":
            path = path[:-1]
            name = path[-1] if name == "self" else name
        if not path:
            return
        self.module.uses.append(Use(path, line, self.exported, True, glob))
        if glob:
            self.module.globs.append(path)
        elif path != (name,):
            known = self.module.imports if top else self.module.local_imports
            known.setdefault(name, []).append(path)

    def path(self, token):
        """Reads a path in the code; a single word is only remembered, for what globs may bring."""
        before = self.tokens[self.at - 1].text if self.at else ""
        path = (token.text,)
        self.at += 1
        while self.text() == "::" and self.word(1):
            path += (self.text(1),)
            self.at += 2
        if before == "::":
            return
        self.module.words.add(path[0])
        if len(path) > 1:
            if path[0] in ROOTS or path[0] != "Self":
                self.module.uses.append(Use(path, token.line))
        elif self.text() == "!" and self.text(1) in ("(", "[", "{"):
            self.module.macros_called.setdefault(path[0], token.line)
