"""The rooms of the design and the arrows between them: who may import what, read from the sources."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY


@dataclass(frozen=True)
class Room:
    """What the modules of one package may import beside the standard library and the package itself."""

    imports: frozenset[str]
    """packages and other rooms, allowed anywhere"""
    lazily: frozenset[str] = field(default=frozenset())
    """allowed inside functions and under TYPE_CHECKING only, so that importing the room does not load them"""


def room(*imports: str, lazily: tuple[str, ...] = ()) -> Room:
    return Room(frozenset(imports), frozenset(lazily))


SOURCES = {
    "fractune_core": "tuner_core",
    "fractune_server": "tuner_server",
    "fractune_workers": "workers",
    "fractune": "tuner_client",
}
"""the source root of each package"""

# The one generated module that needs gRPC: a room of its own, so that the rest of fractune_core is without.
GRPC_STUBS = "fractune_core.pb.fractune_pb2_grpc"

CORE = tuple(
    f"fractune_core{name}"
    for name in ("", ".access", ".analysis", ".convert", ".cuda", ".files", ".fleet", ".host", ".planning", ".tracing")
)

STORE = tuple(f"fractune_server.store{name}" for name in ("", ".database", ".files", ".records"))


def child_room(*imports: str, lazily: tuple[str, ...] = ()) -> Room:
    tvm = ("tvm", "tvm_ffi", "tvm_ffi_orcjit", "numpy", "onnx", "onnxslim")
    return room(*CORE, "fractune_workers.child", *tvm, *imports, lazily=("ml_dtypes", *lazily))


# A room inside a room (`fractune_workers.children`) stands for itself: neither may import the other unless it says so.
# A single module that is a room of its own (`fractune_workers.child`) may be imported where its package may not.
ROOMS = {
    # ---- core: the words of the domain below, what is made of them above
    "fractune_core": room("google.protobuf"),
    "fractune_core.access": room("fractune_core"),
    "fractune_core.convert": room("fractune_core", "google.protobuf"),
    "fractune_core.cuda": room(),
    "fractune_core.files": room("fractune_core"),
    "fractune_core.fleet": room("fractune_core", "fractune_core.access"),
    "fractune_core.host": room(),
    # OpenTelemetry is of the extra `trace`.
    "fractune_core.tracing": room(lazily=("opentelemetry",)),
    "fractune_core.analysis": room("fractune_core"),
    # The solver of integer programs is of the extra `plan`.
    "fractune_core.planning": room("fractune_core", "fractune_core.analysis", lazily=("highspy", "numpy")),
    GRPC_STUBS: room("fractune_core", "grpc"),
    # ---- server: main wires; services call selection and store; the engine never knows who asks
    "fractune_server": room(
        *CORE,
        *(
            f"fractune_server.{name}"
            for name in ("access", "engine", "monitoring", "selection", "services", "transport")
        ),
        *STORE,
        GRPC_STUBS,
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "prometheus_client",
        "redis",
    ),
    # Metrics that others can reach are for those who may read.
    "fractune_server.monitoring": room(
        *CORE,
        "fractune_server.access",
        *STORE,
        "fractune_server.transport",
        "grpc_health",
        "prometheus_client",
        "redis",
    ),
    # Who may call: services ask who does, main puts it before them.
    "fractune_server.access": room(*CORE, *STORE, "grpc", "google.protobuf"),
    "fractune_server.services": room(
        *CORE,
        "fractune_server.counts",
        "fractune_server.access",
        "fractune_server.selection",
        *STORE,
        "fractune_server.transport",
        GRPC_STUBS,
        "google.protobuf",
        "grpc",
        "redis",
    ),
    "fractune_server.engine": room(
        *CORE,
        "fractune_server.scheduler",
        "fractune_server.selection",
        *STORE,
        "fractune_server.transport",
        "redis",
    ),
    "fractune_server.selection": room(*CORE, *STORE, "fractune_server.transport"),
    "fractune_server.scheduler": room(*CORE),
    "fractune_server.transport": room(*CORE, "fractune_server.counts", *STORE, "redis", "rq"),
    "fractune_server.counts": room(*CORE, "prometheus_client"),
    "fractune_server.store": room(*CORE, *STORE[1:], "sqlalchemy"),
    "fractune_server.store.database": room(*CORE, "sqlalchemy", "alembic", lazily=("psycopg",)),
    "fractune_server.store.files": room(*CORE),
    "fractune_server.store.records": room(*CORE, "fractune_server.store.database", "sqlalchemy"),
    # ---- workers: main wires; the roles stand on sessions and locks; TVM is in children alone
    "fractune_workers": room(
        *CORE,
        "fractune_workers.child",
        "fractune_workers.confinement",
        "fractune_workers.context",
        "fractune_workers.locks",
        "fractune_workers.meter",
        "fractune_workers.roles",
        "redis",
        "rq",
    ),
    "fractune_workers.child": room(*CORE),
    "fractune_workers.work_counts": room(*CORE),
    "fractune_workers.meter": room(*CORE),
    "fractune_workers.builder_process": room(*CORE, "fractune_workers.child"),
    "fractune_workers.context": room(
        *CORE,
        "fractune_workers.child",
        "fractune_workers.locks",
        "fractune_workers.meter",
        "fractune_workers.work_counts",
        "redis",
        "rq",
    ),
    "fractune_workers.roles": room(
        *CORE,
        "fractune_workers.builder_process",
        "fractune_workers.child",
        "fractune_workers.context",
        "fractune_workers.gpu",
        "fractune_workers.locks",
        "fractune_workers.measuring",
        "redis",
    ),
    "fractune_workers.calibration": room(
        *CORE,
        "fractune_workers.builder_process",
        "fractune_workers.child",
        "fractune_workers.locks",
        "fractune_workers.measuring",
    ),
    "fractune_workers.measuring": room(
        *CORE,
        "fractune_workers.child",
        "fractune_workers.confinement",
        "fractune_workers.faults",
        "fractune_workers.gpu",
        "fractune_workers.locks",
    ),
    "fractune_workers.faults": room(
        *CORE, "fractune_workers.child", "fractune_workers.confinement", "fractune_workers.locks"
    ),
    "fractune_workers.inventory": room(
        *CORE, "fractune_workers.child", "fractune_workers.confinement", "fractune_workers.cuda", "fractune_workers.gpu"
    ),
    "fractune_workers.confinement": room(
        *CORE, "fractune_workers.cuda", "fractune_workers.gpu", "fractune_workers.locks"
    ),
    # The two places for NVIDIA's driver and its library, in the packages of the extra `cuda`.
    "fractune_workers.gpu": room(*CORE, "fractune_workers.cuda", "fractune_workers.locks", lazily=("pynvml",)),
    "fractune_workers.cuda": room(*CORE, lazily=("cuda",)),
    "fractune_workers.locks": room(*CORE),
    # ---- children: run as processes of their own, which may crash; the one place for TVM and all that it needs
    "fractune_workers.children": child_room("fractune_workers.children.no_torch", "fractune_workers.children.tvm_api"),
    "fractune_workers.children.no_torch": room(),
    "fractune_workers.children.tvm_api": child_room("fractune_workers.cuda"),
    "fractune_workers.children.importing": child_room(
        "fractune_workers.children.layouts",
        "fractune_workers.children.no_torch",
        "fractune_workers.children.tvm_api",
        "google.protobuf",
        lazily=("torch",),
    ),
    "fractune_workers.children.fusing": child_room(
        "fractune_workers.children.importing",
        "fractune_workers.children.layouts",
        "fractune_workers.children.tvm_api",
        "google.protobuf",
    ),
    "fractune_workers.children.layouts": child_room("fractune_workers.children.tvm_api"),
    "fractune_workers.children.searching": child_room(
        "fractune_workers.children.layouts",
        "fractune_workers.children.tvm_api",
    ),
    "fractune_workers.children.building": child_room("fractune_workers.children.tvm_api", "fractune_workers.cuda"),
    "fractune_workers.children.compiling": child_room(
        "fractune_workers.children.building",
        "fractune_workers.children.fusing",
        "fractune_workers.children.importing",
        "fractune_workers.children.layouts",
        "fractune_workers.children.tvm_api",
    ),
    "fractune_workers.children.measuring": child_room(
        "fractune_workers.children.layouts",
        "fractune_workers.children.tvm_api",
        "fractune_workers.confinement",
        "fractune_workers.cuda",
        "fractune_workers.gpu",
    ),
    # ---- client
    "fractune": room(
        *CORE,
        GRPC_STUBS,
        "google.protobuf",
        "grpc",
        "grpc_health",
        lazily=("fractune.api", "fractune.inference", "fractune.reports"),
    ),
    "fractune.cli": room(*CORE, "fractune", "fractune.api", "fractune.reports", "typer", "click", "rich"),
    "fractune.cli.commands": room(
        *CORE,
        "fractune",
        "fractune.api",
        "fractune.cli",
        "fractune.inference",
        "fractune.launchers",
        "fractune.local",
        "fractune.log_io",
        "fractune.planning",
        "fractune.reports",
        "typer",
        "click",
        "rich",
        lazily=("numpy",),
    ),
    # What `import fractune` offers. Models in memory are written by the package that made them, which is loaded then.
    "fractune.api": room(
        *CORE,
        "fractune",
        "fractune.launchers",
        "fractune.local",
        "fractune.log_io",
        "fractune.planning",
        "fractune.reports",
        "rich",
        lazily=("fractune.inference", "onnx", "torch", "tvm"),
    ),
    # `fractune server` and `fractune worker` become those parts; nothing else in the client knows them. A peer is timed
    # beside a bundle in a process that is confined as the workers' are.
    "fractune.launchers": room(
        *CORE,
        lazily=(
            "fractune.inference",
            "fractune_server",
            *(
                f"fractune_workers{name}"
                for name in ("", ".calibration", ".child", ".confinement", ".gpu", ".inventory", ".locks")
            ),
        ),
    ),
    "fractune.local": room(*CORE, "fractune", "fractune.launchers", "platformdirs"),
    "fractune.reports": room(*CORE, "fractune", "rich", lazily=("matplotlib", "numpy")),
    "fractune.planning": room(*CORE, "fractune", "fractune.reports", lazily=("matplotlib",)),
    "fractune.log_io": room(*CORE, "fractune", lazily=("tvm", "tvm_ffi", "numpy")),
    # Runs on machines that have the extra `run` alone: TVM's runtime, neither its package nor its compiler.
    "fractune.inference": room(
        *CORE,
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
        # `from fractune_workers import children` imports a room by its last name
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


def imports_of(path: Path, module: str) -> list[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    collector = ImportCollector(package)
    collector.visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return collector.found


def wrong_arrows(root: Path) -> Iterator[str]:
    """Each forbidden import below `root`, as `file:line room imports module`."""
    for path in sorted(path for top, source in SOURCES.items() for path in root.glob(f"{source}/{top}/**/*.py")):
        parts = path.relative_to(root).with_suffix("").parts[1:]
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        home = room_of(module)
        assert home is not None
        for found in imports_of(path, module):
            if not is_allowed(found, home):
                when = "lazily imports" if found.lazy else "imports"
                yield f"{path.relative_to(root)}:{found.line} {home} {when} {found.module}"


def test_every_import_follows_the_arrows() -> None:
    assert list(wrong_arrows(REPOSITORY)) == []


def test_the_arrows_go_one_way() -> None:
    TopologicalSorter({name: room.imports & ROOMS.keys() for name, room in ROOMS.items()}).prepare()


def test_no_folder_is_without_a_room() -> None:
    folders = {
        ".".join(path.parent.relative_to(REPOSITORY / source).parts)
        for top, source in SOURCES.items()
        for path in (REPOSITORY / source / top).rglob("__init__.py")
    }
    assert folders - ROOMS.keys() == {"fractune_core.pb", "fractune.inference.cpu", "fractune.inference.gpu"}


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_every_room_exists(name: str) -> None:
    path = REPOSITORY / SOURCES[name.split(".", maxsplit=1)[0]] / name.replace(".", "/")
    assert (path / "__init__.py").is_file() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("tuner_core/fractune_core/a.py", "import grpc", "fractune_core imports grpc"),
        (
            "tuner_core/fractune_core/a.py",
            "from fractune_core.pb import fractune_pb2_grpc",
            f"fractune_core imports {GRPC_STUBS}",
        ),
        ("tuner_core/fractune_core/a.py", "from .pb.fractune_pb2_grpc import x", f"fractune_core imports {GRPC_STUBS}"),
        ("tuner_core/fractune_core/pb/a_pb2.py", "import grpc", "fractune_core imports grpc"),
        ("tuner_server/fractune_server/a.py", "def f():\n    import tvm", "fractune_server lazily imports tvm"),
        (
            "tuner_server/fractune_server/services/a.py",
            "from fractune_workers.build import x",
            "fractune_server.services imports fractune_workers.build",
        ),
        (
            "tuner_core/fractune_core/jobs.py",
            "from fractune_core.files.bundles import X",
            "fractune_core imports fractune_core.files.bundles",
        ),
        (
            "tuner_server/fractune_server/services/a.py",
            "from fractune_server.engine.engine import Engine",
            "fractune_server.services imports fractune_server.engine.engine",
        ),
        (
            "tuner_server/fractune_server/selection/a.py",
            "from fractune_server.engine import ingest",
            "fractune_server.selection imports fractune_server.engine",
        ),
        ("tuner_server/fractune_server/scheduler/a.py", "import redis", "fractune_server.scheduler imports redis"),
        (
            "workers/fractune_workers/locks/a.py",
            "from fractune_workers.confinement import cpu",
            "fractune_workers.locks imports fractune_workers.confinement",
        ),
        (
            "workers/fractune_workers/children/measuring/a.py",
            "from fractune_workers.children.compiling import child",
            "fractune_workers.children.measuring imports fractune_workers.children.compiling",
        ),
        (
            "tuner_client/fractune/reports/a.py",
            "from fractune.cli import progress",
            "fractune.reports imports fractune.cli",
        ),
        ("workers/fractune_workers/a.py", "import grpc", "fractune_workers imports grpc"),
        ("workers/fractune_workers/a.py", "import numpy.random", "fractune_workers imports numpy.random"),
        (
            "workers/fractune_workers/a.py",
            "from fractune_workers import children",
            "fractune_workers imports fractune_workers.children",
        ),
        (
            "workers/fractune_workers/a.py",
            "from .children.build import x",
            "fractune_workers imports fractune_workers.children.build",
        ),
        (
            "workers/fractune_workers/confinement/a.py",
            "def f():\n    from tvm import relax",
            "fractune_workers.confinement lazily imports tvm",
        ),
        ("workers/fractune_workers/a.py", "def f():\n    import pynvml", "fractune_workers lazily imports pynvml"),
        (
            "workers/fractune_workers/gpu/a.py",
            "from cuda.bindings import driver",
            "fractune_workers.gpu imports cuda.bindings",
        ),
        (
            "workers/fractune_workers/a.py",
            "import importlib\nimportlib.import_module('sqlalchemy')",
            "fractune_workers imports sqlalchemy",
        ),
        (
            "workers/fractune_workers/children/a.py",
            "import fractune.cli",
            "fractune_workers.children imports fractune.cli",
        ),
        ("tuner_client/fractune/a.py", "import tvm", "fractune imports tvm"),
        ("tuner_client/fractune/a.py", "if True:\n    import numpy as np", "fractune imports numpy"),
        (
            "tuner_client/fractune/a.py",
            "def f():\n    import fractune_server.x",
            "fractune lazily imports fractune_server.x",
        ),
        (
            "tuner_client/fractune/inference/a.py",
            "def f():\n    from tvm import relax",
            "fractune.inference lazily imports tvm",
        ),
        (
            "tuner_client/fractune/launchers/a.py",
            "import fractune_workers.main",
            "fractune.launchers imports fractune_workers.main",
        ),
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
            "tuner_core/fractune_core/a.py",
            "import json\nfrom fractune_core import shares\nfrom fractune_core.pb import fractune_pb2",
        ),
        ("tuner_server/fractune_server/a.py", "from fractune_core.pb import fractune_pb2_grpc\nimport grpc_health"),
        (
            "workers/fractune_workers/children/a.py",
            "import tvm\nfrom fractune_workers.child import Child\nfrom . import b",
        ),
        ("workers/fractune_workers/gpu/a.py", "def f():\n    import pynvml"),
        ("workers/fractune_workers/cuda/a.py", "def f():\n    from cuda.bindings import driver"),
        ("tuner_client/fractune/log_io/a.py", "async def f():\n    import tvm"),
        ("tuner_client/fractune/reports/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy"),
    ],
)
def test_a_right_import_passes(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert list(wrong_arrows(tmp_path)) == []
