"""`fractune fit` for real: a model is timed in a confined process, as an ONNX file and as a bundle."""

import importlib.util
import os
import runpy
import sys
from pathlib import Path

import pytest

import fractune
from fractune.errors import BadRequest
from fractune.features.fit import measuring
from fractune.features.fit.measuring import ONNX_RUNTIME, usable_cores
from fractune_core.cpu_limits import powers_of_two
from fractune_workers.confinement.limit_cgroups import LimitCgroups
from tests.support.hardware.real_cgroup import capped_cgroup
from tests.support.paths import REPOSITORY
from tests.support.processes.server_environments import ENVIRONMENTS, python_of
from tests.support.real_bundle import Small

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="a bundle with two variants needs two cores")

ROUNDS = 3


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few, because the test uses none of the figures."""
    monkeypatch.setattr(measuring, "_ROUNDS", ROUNDS)


def test_an_onnx_file_is_timed_in_onnx_runtime(small: Small) -> None:
    """The model takes some 20 us: every limit would do."""
    found = fractune.fit(small.model, "5/s", "500ms", progress=False)
    assert found.measured.runtime == ONNX_RUNTIME
    assert found.measured.version
    assert [service.threads for service in found.measured.services] == powers_of_two(usable_cores())
    for service in found.measured.services:
        assert 0 < service.mean_s < 0.1
        assert 0 < service.cpu_s < 0.1
        assert len(service.paced_wall_s) >= ROUNDS
    assert (found.best.threads, found.best.replicas) == (1, 1)


@pytest.mark.parametrize("file", [pytest.param("model", marks=pytest.mark.long), "bundle"])
def test_a_limit_is_verified_for_real(small: Small, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """The model takes some 20 us, so the smallest limit keeps half a second. A bundle is timed with its variants."""
    if lacks := LimitCgroups().lacks():
        pytest.skip(f"no cgroup can be made here: {lacks}")
    monkeypatch.setattr(measuring, "enough_requests", lambda *_: 200)
    before, lines, path = os.sched_getaffinity(0), list[str](), getattr(small, file)
    with capped_cgroup(cores=None) as cgroup, cgroup.joined():
        found = fractune.fit(path, "100/s", "500ms", share_steps="200m", verify=True, progress=lines.append)
        assert not list(cgroup.folder.rglob("fractune-limit-*"))
    assert found.verified is not None
    assert (found.verified.requests, found.verified.held) == (200, True)
    assert 0 < found.verified.p50_s <= found.verified.p99_s < 0.5
    assert os.sched_getaffinity(0) == before
    if file == "bundle":
        assert [service.threads for service in found.measured.services] == [1, 2]
        assert lines[0] == "timing small.fractune in fractune without a limit, with 1, 2 threads"
        assert 'fractune.load("small.fractune", threads=1)' in found.settings[1]
        with pytest.raises(BadRequest, match=r"^inputs: the shapes of small\.fractune were fixed"):
            fractune.fit(path, 5, 0.5, inputs={"x": [1, 4, 16, 16]}, progress=False)


@pytest.mark.skipif(importlib.util.find_spec("fastapi") is None, reason="FastAPI is not installed here")
def test_a_limit_is_verified_behind_fastapi(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    check_behind("fastapi", sys.executable, small, monkeypatch)


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("server", ENVIRONMENTS)
def test_a_limit_is_verified_behind_a_server(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: str
) -> None:
    wheel = runpy.run_path(str(REPOSITORY / "scripts" / "runtime_wheel"))["build"](tmp_path)
    check_behind(server, str(python_of(server, wheel)), small, monkeypatch)


def check_behind(server: str, python: str, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole machine is the limit, so that the server starts soon."""
    if lacks := LimitCgroups().lacks():
        pytest.skip(f"no cgroup can be made here: {lacks}")
    monkeypatch.setattr(measuring, "enough_requests", lambda *_: 50)
    with capped_cgroup(cores=None) as cgroup, cgroup.joined():
        found = fractune.fit(
            *(small.bundle, "20/s", "30s"),
            share_steps="1500m",
            server=server,
            server_python=python,
            progress=False,
        )
        assert not list(cgroup.folder.rglob("fractune-limit-*"))
    assert found.behind is not None
    assert (found.behind.server, found.behind.requests, found.behind.held) == (server, 50, True)
    assert 0 < found.behind.p50_s <= found.behind.p99_s < 30
    assert found.behind.request_cpu_s > found.behind.model_cpu_s
