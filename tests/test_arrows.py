"""Every import of the tree follows the arrows between its rooms, and one that does not is found."""

from __future__ import annotations

from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.arrows.imports import import_cycle, imports_of, modules_of, wrong_arrows
from tests.support.arrows.rooms import GRPC_STUBS, ROOMS, SOURCES
from tests.support.paths import REPOSITORY

SMALL_LINES = 80
STAND_ALONE = {
    "fractune_workers.children.measuring.compiled_software": "TVM's compiler, which its user may not load",
}
"""small files with one user beside them, and why they are no part of it"""


def test_every_import_follows_the_arrows() -> None:
    assert list(wrong_arrows(REPOSITORY)) == []


def test_the_arrows_go_one_way() -> None:
    TopologicalSorter({name: room.imports & ROOMS.keys() for name, room in ROOMS.items()}).prepare()


@pytest.mark.parametrize("package", SOURCES)
def test_no_module_imports_itself_in_a_circle(package: str) -> None:
    assert import_cycle(REPOSITORY, package) == []


@pytest.mark.parametrize(
    "back", ["from fractune_core import b", "def f():\n    import fractune_core.b", "from fractune_core.b import x"]
)
def test_a_circle_of_imports_is_found(tmp_path: Path, back: str) -> None:
    package = tmp_path / "tuner_core/fractune_core"
    package.mkdir(parents=True)
    (package / "a.py").write_text(back)
    (package / "b.py").write_text("from fractune_core.a import y")
    assert set(import_cycle(tmp_path, "fractune_core")) == {"fractune_core.a", "fractune_core.b"}


def test_no_folder_is_without_a_room() -> None:
    folders = {
        ".".join(path.parent.relative_to(REPOSITORY / source).parts)
        for top, source in SOURCES.items()
        for path in (REPOSITORY / source / top).rglob("__init__.py")
    }
    assert folders - ROOMS.keys() == {"fractune_core.pb"}


def test_a_small_file_has_a_second_user_or_is_part_of_its_only_one() -> None:
    """A user in another room does not count: a file that it needs may not be a part of it."""
    found = (modules_of(REPOSITORY, package) for package in SOURCES)
    modules = {name: path for each in found for name, path in each.items() if path.name != "__init__.py"}
    users: defaultdict[str, set[str]] = defaultdict(set)
    for user, path in modules.items():
        for each in imports_of(path, user):
            users[each.name if each.name in modules else each.module].add(user)
    small = {name for name, path in modules.items() if len(path.read_text(encoding="utf-8").splitlines()) < SMALL_LINES}
    alone = {name for name in small for user in users[name] if users[name] == {user} and beside(user, name)}
    assert alone == STAND_ALONE.keys()


def beside(module: str, other: str) -> bool:
    return module.rpartition(".")[0] == other.rpartition(".")[0]


def test_every_room_exists() -> None:
    paths = {name: REPOSITORY / SOURCES[name.partition(".")[0]] / name.replace(".", "/") for name in ROOMS}
    missing = [
        name
        for name, path in paths.items()
        if not (path / "__init__.py").is_file() and not path.with_suffix(".py").is_file()
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("fractune_core.a", "import grpc", "imports grpc"),
        ("fractune_core.a", "from fractune_core.pb import fractune_pb2_grpc", f"imports {GRPC_STUBS}"),
        ("fractune_core.a", "from .pb.fractune_pb2_grpc import x", f"imports {GRPC_STUBS}"),
        ("fractune_core.pb.a_pb2", "import grpc", "imports grpc"),
        ("fractune_server.a", "def f():\n    import tvm", "lazily imports tvm"),
        ("fractune_server.services.a", "from fractune_workers.build import x", "imports fractune_workers.build"),
        ("fractune_core.jobs", "from fractune_core.files.bundles import X", "imports fractune_core.files.bundles"),
        (
            "fractune_server.services.a",
            "from fractune_server.engine.engine import Engine",
            "imports fractune_server.engine.engine",
        ),
        ("fractune_server.selection.a", "from fractune_server.engine import ingest", "imports fractune_server.engine"),
        ("fractune_server.scheduler.a", "import redis", "imports redis"),
        (
            "fractune_workers.locks.a",
            "from fractune_workers.confinement import cpu",
            "imports fractune_workers.confinement",
        ),
        (
            "fractune_workers.children.measuring.a",
            "from fractune_workers.children.compiling import child",
            "imports fractune_workers.children.compiling",
        ),
        ("fractune.text.a", "from fractune.cli import progress", "imports fractune.cli"),
        ("fractune_workers.a", "import grpc", "imports grpc"),
        ("fractune_workers.a", "import numpy.random", "imports numpy.random"),
        ("fractune_workers.a", "from fractune_workers import children", "imports fractune_workers.children"),
        ("fractune_workers.a", "from .children.build import x", "imports fractune_workers.children.build"),
        ("fractune_workers.confinement.a", "def f():\n    from tvm import relax", "lazily imports tvm"),
        ("fractune_workers.a", "def f():\n    import pynvml", "lazily imports pynvml"),
        ("fractune_workers.gpu.a", "from cuda.bindings import driver", "imports cuda.bindings"),
        ("fractune_workers.a", "import importlib\nimportlib.import_module('sqlalchemy')", "imports sqlalchemy"),
        ("fractune_workers.children.a", "import fractune.cli", "imports fractune.cli"),
        ("fractune.a", "import tvm", "imports tvm"),
        ("fractune.a", "if True:\n    import numpy as np", "imports numpy"),
        ("fractune.a", "def f():\n    import fractune_server.x", "lazily imports fractune_server.x"),
        ("fractune_runtime.a", "def f():\n    from tvm import relax", "lazily imports tvm"),
        ("fractune.local.a", "import fractune_workers.main", "imports fractune_workers.main"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, module: str, source: str, wrong: str) -> None:
    path = written(tmp_path, module, source)
    room = max((name for name in ROOMS if module.startswith(f"{name}.")), key=len)
    (complaint,) = wrong_arrows(tmp_path)
    assert complaint.startswith(str(path.relative_to(tmp_path)))
    assert complaint.endswith(f"{room} {wrong}")


def written(folder: Path, module: str, source: str) -> Path:
    path = folder / SOURCES[module.partition(".")[0]] / f"{module.replace('.', '/')}.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    return path


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fractune_core.a", "import json\nfrom fractune_core import shares\nfrom fractune_core.pb import fractune_pb2"),
        ("fractune_server.a", "from fractune_core.pb import fractune_pb2_grpc\nimport grpc_health"),
        ("fractune_workers.children.a", "import tvm\nfrom fractune_workers.child import Child\nfrom . import b"),
        ("fractune_workers.gpu.a", "def f():\n    import pynvml"),
        ("fractune_workers.cuda.a", "def f():\n    from cuda.bindings import driver"),
        ("fractune.features.log.a", "async def f():\n    import tvm"),
        ("fractune.features.log.a", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy"),
    ],
)
def test_a_right_import_passes(tmp_path: Path, module: str, source: str) -> None:
    written(tmp_path, module, source)
    assert list(wrong_arrows(tmp_path)) == []
