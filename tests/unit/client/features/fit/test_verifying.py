"""What a verification serves under which limit, and its verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fractune
from fractune.cli import main
from fractune.errors import ShareUnavailable
from fractune.features.fit import fit as fitting, measuring
from fractune.features.fit.measuring import (
    FRACTUNE,
    ONNX_RUNTIME,
    REQUESTS,
    BehindServer,
    Measured,
    Verified,
    check_limits,
    verify,
    verify_behind,
)
from fractune.local import model_server
from fractune_core.analysis.limit_fitting import Alternative, Goal
from fractune_core.analysis.limit_prediction import predict
from fractune_core.cpu_limits import CpuLimit, Service
from fractune_core.errors import FractuneError
from fractune_runtime import loading
from fractune_workers.confinement.limit_cgroups import LimitCgroups

ONE = Service(1, (0.0183,), 0.0184, (0.0190,))
GOAL = Goal(rate_per_s=10, p99_s=0.08, cores=2)
LIMIT = CpuLimit(600)
FOUND = Alternative(1, 2, LIMIT, predict(ONE, LIMIT, replicas=2, rate_per_s=10, requests=500), 0.07)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was served. 985 of 1,000 requests take 20 ms, the rest 70 ms."""
    seen: list[Any] = []

    @contextmanager
    def timing_process(share: str, _env: object, served_s: float) -> Iterator[Callable[..., Any]]:
        def call(method: str, **arguments: Any) -> dict[str, Any]:
            seen.append((share, method, arguments))
            count = len(arguments["arrivals_s"])
            slow = round(0.015 * count)
            assert served_s == arguments["arrivals_s"][-1]
            return {"latencies_s": [0.07] * slow + [0.02] * (count - slow), "other_cores": 0.0}

        yield call

    monkeypatch.setattr(measuring, "timing_process", timing_process)
    monkeypatch.setattr(measuring, "check_limits", lambda: None)
    return seen


@pytest.fixture
def unsimulated(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """As `served`, where the simulation of these requests, which takes a second, says nothing."""
    monkeypatch.setattr(measuring, "p99_spread", lambda *_, **__: (0.9, 1.1))
    monkeypatch.setattr(measuring, "_RUNS", 1)
    return served


def verified(runtime: str = ONNX_RUNTIME, found: Alternative = FOUND, goal: Goal = GOAL, seed: int = 0) -> Verified:
    shapes = {"x": [1, 4]} if runtime == ONNX_RUNTIME else {}
    return verify(Path("m.onnx"), Measured(runtime, "1.31", (ONE,)), found, goal, shapes, lambda _: None, seed)


def test_replicas_get_poisson_arrivals_under_the_limit(unsimulated: list[Any]) -> None:
    found = verified()
    ((share, method, arguments),) = unsimulated
    assert (share, method, arguments["runtime"]) == ("cpu:600m@2", "serve", "onnxruntime")
    assert (arguments["threads"], arguments["shapes"]) == ([1, 1], {"x": [1, 4]})
    arrivals_s = arguments["arrivals_s"]
    assert found.requests == len(arrivals_s) == REQUESTS
    assert arrivals_s[-1] / REQUESTS == pytest.approx(1 / GOAL.rate_per_s, rel=0.1)
    assert arrivals_s == sorted(arrivals_s)


def test_measured_and_predicted_latencies_stand_side_by_side(served: list[Any]) -> None:
    found = verified()
    assert served
    assert (found.p50_s, found.p99_s, found.held) == (0.02, 0.07, True)
    assert found.p99_low_s < found.p99_s < found.p99_high_s
    assert found.predicted_p50_s == pytest.approx(0.019, abs=0.002)
    assert 0.03 < found.predicted_p99_s < 0.08


def test_a_bundle_is_served_and_its_period_is_kept(unsimulated: list[Any]) -> None:
    verified(FRACTUNE, replace(FOUND, limit=CpuLimit(600, 20_000)))
    ((share, _, arguments),) = unsimulated
    assert (share, arguments["runtime"], arguments["shapes"]) == ("cpu:600m@2/20ms", "fractune", {})


def test_a_burst_is_refused_with_what_was_found(served: list[Any]) -> None:
    with pytest.raises(ShareUnavailable, match=r"^600m keep the p99 with a burst of 60000 us alone, .*; ask for"):
        verified(found=replace(FOUND, limit=CpuLimit(600, burst_us=60_000)))
    assert not served


def test_without_rights_nothing_is_measured_and_the_code_is_4(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LimitCgroups, "lacks", lambda _: "/sys/fs/cgroup cannot be changed")
    with pytest.raises(ShareUnavailable, match="or leave --verify out"):
        check_limits()

    def measured(*_: object) -> Measured:
        raise FractuneError("the model was timed")

    monkeypatch.setattr(fitting, "measure", measured)
    assert main(["fit", "m.onnx", "--rate", "10/s", "--p99", "80ms", "--verify"]) == ShareUnavailable.exit_code
    assert "can be made here: /sys/fs/cgroup cannot be changed; run this as root" in capfd.readouterr().err


def test_behind_a_server_its_cpu_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrivals are those of `verify`. The server takes 4 ms of CPU time a request."""
    seen: list[Any] = []

    class Running:
        def wait(self) -> None: ...
        def ask(self, body: bytes) -> None:
            assert not seen, "it is warmed up first"
            assert json.loads(body)["inputs"][0]["name"] == "x"

        def latencies_s(self, _: object, __: bytes, arrivals_s: list[float]) -> list[float]:
            seen.append(arrivals_s)
            return [0.05] * len(arrivals_s)

        def cpu_s(self) -> float:
            return 1.0 + 0.004 * REQUESTS * len(seen)

    @contextmanager
    def serving_at(*given: Any) -> Iterator[Running]:
        assert given[:3] == ("cpu:600m@2", "kserve", "python3")
        assert given[-1] == {"REPLICAS": "2", "THREADS": "1"}
        yield Running()

    model = SimpleNamespace(random_inputs=lambda: {"x": np.zeros((1, 4), np.float32)})
    monkeypatch.setattr(model_server, "serving_at", serving_at)
    monkeypatch.setattr(loading, "load", lambda _: model)
    measured = Measured(FRACTUNE, "", (ONE,))
    found = verify_behind("kserve", "python3", Path("m.fractune"), measured, FOUND, GOAL, lambda _: None)
    assert (found.requests, found.p99_s, found.held) == (REQUESTS, 0.05, True)
    assert found.request_cpu_s == pytest.approx(0.004)
    assert found.model_cpu_s == ONE.cpu_s
    assert seen[0][-1] / REQUESTS == pytest.approx(1 / GOAL.rate_per_s, rel=0.1)


@pytest.mark.parametrize(("p99_s", "code", "word"), [(0.07, 0, "keeps"), (0.09, 10, "does not keep")])
def test_the_server_is_beside_the_model(
    fitted: Verified,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    p99_s: float,
    code: int,
    word: str,
) -> None:
    behind = BehindServer("ray", 2_000, 0.03, p99_s, 0.0304, ONE.cpu_s, 0.0, held=p99_s <= 0.08)
    monkeypatch.setattr(fitting, "check_server", lambda *_: None)
    monkeypatch.setattr(fitting, "is_bundle", lambda _: True)
    monkeypatch.setattr(measuring, "verify_behind", lambda *_: behind)
    asked = ["fit", "m.fractune", "--rate", "10/s", "--p99", "80ms", "--server", "ray"]
    assert main(asked) == code
    lines = capfd.readouterr().out
    assert f"behind ray, 2 x 1 thread at 600m {word} the p99 of 80.0 ms: p99 {1e3 * p99_s:.1f} ms, p50 30.0 ms" in lines
    assert "the model alone, predicted: p99" in lines
    assert "a request takes 30.4 ms of CPU time, 18.4 ms of it for the model: at 10/s the server itself" in lines
    assert "needs 120m" in lines
    assert "# BUNDLE=m.fractune REPLICAS=2 THREADS=1 python -m fractune_runtime.serving.ray" in lines
    assert main([*asked, "--verify", "--json"]) == code
    assert json.loads(capfd.readouterr().out)["behind"]["p99_s"] == p99_s
    assert fitted.held


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> Verified:
    """A fit whose limit is verified: the p99 is 70 ms, and other programs are busy."""
    result = Verified(2_000, 0.02, 0.07, 0.06, 0.081, 0.0195, 0.065, 0.8, held=True)
    monkeypatch.setattr(fitting, "usable_cores", lambda: 2)
    monkeypatch.setattr(fitting, "check_limits", lambda *_: None)
    monkeypatch.setattr(fitting, "measure", lambda *_: Measured(ONNX_RUNTIME, "1.31", (ONE,)))
    monkeypatch.setattr(fitting, "fit_services", lambda *_: [FOUND])
    monkeypatch.setattr(measuring, "verify", lambda *given: replace(result, held=given[3].p99_s >= result.p99_s))
    return result


def test_the_result_has_the_verdict_json_and_a_point_in_the_picture(fitted: Verified, tmp_path: Path) -> None:
    found = fractune.fit("m.onnx", 10, 0.08, verify=True, progress=False)
    assert found.verified == fitted
    assert found.verdict == (
        (
            "2 x 1 thread at 600m keeps the p99 of 80.0 ms under the real limit: p99 70.0 ms (60.0 ms .. 81.0 ms), "
            "p50 20.0 ms, of 2,000 requests"
        ),
        "predicted for the same arrivals: p99 65.0 ms, p50 19.5 ms",
        "note: other programs used 0.8 cores meanwhile, so latencies are too high; verify again on an idle machine",
    )
    assert found.to_json()["verified"]["p99_high_s"] == 0.081
    found.draw(tmp_path / "fit.svg")
    assert "<!-- measured under the limit -->" in (tmp_path / "fit.svg").read_text()
    missed = fractune.fit("m.onnx", 10, 0.06, verify=True, progress=False)
    assert missed.verdict[0].startswith("2 x 1 thread at 600m is not known to keep the p99 of 60.0 ms")
    unverified = fractune.fit("m.onnx", 10, 0.08, progress=False)
    assert (unverified.verdict, unverified.to_json()["verified"]) == ((), None)


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize(("p99", "code", "word"), [("80ms", 0, "keeps"), ("60ms", 10, "is not known to keep")])
def test_the_exit_code_says_whether_the_p99_was_kept(
    capfd: pytest.CaptureFixture[str], p99: str, code: int, word: str
) -> None:
    assert main(["fit", "m.onnx", "--rate", "10/s", "--p99", p99, "--verify"]) == code
    assert f"2 x 1 thread at 600m {word} the p99 of {p99[:2]}.0 ms under the real limit" in capfd.readouterr().out
    assert main(["fit", "m.onnx", "--rate", "10/s", "--p99", p99, "--verify", "--json"]) == code
    assert json.loads(capfd.readouterr().out)["verified"]["requests"] == 2_000
