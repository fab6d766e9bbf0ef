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
    "fractune.features.parts.cut_child": "a program",
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
    there = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths.values())
    assert [name for name, file in zip(paths, there, strict=True) if not file.is_file()] == []


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
            "tuner_client/fractune/text/a.py",
            "from fractune.cli import progress",
            "fractune.text imports fractune.cli",
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
            "tuner_runtime/fractune_runtime/a.py",
            "def f():\n    from tvm import relax",
            "fractune_runtime lazily imports tvm",
        ),
        (
            "tuner_client/fractune/local/a.py",
            "import fractune_workers.main",
            "fractune.local imports fractune_workers.main",
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
        ("tuner_client/fractune/features/log/a.py", "async def f():\n    import tvm"),
        (
            "tuner_client/fractune/features/log/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy",
        ),
    ],
)
def test_a_right_import_passes(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert list(wrong_arrows(tmp_path)) == []
