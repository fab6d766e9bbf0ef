"""What the modules of a tree import, read from their sources, and which of it the arrows forbid."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.support.arrows.rooms import ROOMS, SOURCES


@dataclass(frozen=True)
class Import:
    """One imported module, where it stands."""

    module: str
    line: int
    lazy: bool
    name: str
    """`module`, or what of it is imported: perhaps a module too"""


class ImportCollector(ast.NodeVisitor):
    """Collects the imports of one module, also those by `importlib.import_module("...")`."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.lazy_depth = 0
        self.found: list[Import] = []

    def add(self, module: str, node: ast.stmt | ast.expr, name: str | None = None) -> None:
        self.found.append(Import(module, node.lineno, self.lazy_depth > 0, name or module))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
        # `from fractune_workers import children` imports a room by its last name
        for alias in node.names:
            full = f"{base}.{alias.name}"
            self.add(full if full in ROOMS else base, node, full)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in {"import_module", "__import__"} and node.args and isinstance(node.args[0], ast.Constant):
            self.add(str(node.args[0].value), node)
        self.generic_visit(node)

    def visit_lazily(self, node: ast.AST) -> None:
        self.lazy_depth += 1
        self.generic_visit(node)
        self.lazy_depth -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.visit_lazily(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_lazily(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING", "_typing.TYPE_CHECKING"}:
            self.visit_lazily(node)
        else:
            self.generic_visit(node)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def room_of(module: str) -> str | None:
    """The innermost room that holds `module`."""
    return max((name for name in ROOMS if within(module, name)), key=len, default=None)


def is_allowed(found: Import, home: str) -> bool:
    if found.module.split(".")[0] in sys.stdlib_module_names:
        return True
    target = room_of(found.module)
    allowed = ROOMS[home].imports | (ROOMS[home].lazily if found.lazy else frozenset())
    if target is not None:
        return target == home or target in allowed
    return any(within(found.module, name) for name in allowed)


@functools.cache
def imports_of(path: Path, module: str) -> list[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    collector = ImportCollector(package)
    collector.visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    stub = path.with_suffix(".pyi")
    if path.name == "__init__.py" and stub.exists():  # what a package loads by its stub, it loads lazily
        collector.visit_lazily(ast.parse(stub.read_text(encoding="utf-8"), str(stub)))
    return collector.found


def modules_of(root: Path, top: str) -> dict[str, Path]:
    """The files of a package below `root`, by the names of their modules."""
    found = {}
    for path in sorted(root.glob(f"{SOURCES[top]}/{top}/**/*.py")):
        parts = path.relative_to(root).with_suffix("").parts[1:]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_cycle(root: Path, top: str) -> list[str]:
    """Modules of a package that import each other in a circle; empty where none do.

    Lazy imports and those for type checkers count too: two modules that need each other are one idea.
    """
    modules = modules_of(root, top)
    graph = {
        module: {name for found in imports_of(path, module) for name in (found.name, found.module) if name in modules}
        - {module, top}
        for module, path in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def wrong_arrows(root: Path) -> Iterator[str]:
    """Each forbidden import below `root`, as `file:line room imports module`."""
    for module, path in (each for top in SOURCES for each in modules_of(root, top).items()):
        home = room_of(module)
        assert home is not None
        for found in imports_of(path, module):
            if not is_allowed(found, home):
                when = "lazily imports" if found.lazy else "imports"
                yield f"{path.relative_to(root)}:{found.line} {home} {when} {found.module}"
