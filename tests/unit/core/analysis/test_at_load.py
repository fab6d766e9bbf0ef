"""The choice among variants that were timed in a loop and at 30 % load."""

import json
import math
import random
from typing import Any

import pytest

from fractune_core.analysis.at_load import AtLoad, are_decided, choices
from fractune_core.analysis.inside import KEPT, OTHERS, CallTime, Inside, slower_notes
from fractune_core.analysis.model_times import RuntimeTime
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.served import Served
from tests.support.measured_pairs import runtime_time

ROUNDS, REQUESTS = 11, 10
AT_LOAD = {"variant": "cpu:1", "threads": 1, "loop_secs": [1.0, 1.0], "latency_secs": [1.0] * 4}


def timed(variant: str, loop_s: float, latency_s: float, threads: int = 2, noise: float = 0.0) -> AtLoad:
    draws = random.Random(f"{variant}{threads}")

    def noisy(secs: float) -> float:
        return secs * (1 + noise * draws.random())

    loop = tuple(noisy(loop_s) for _ in range(ROUNDS))
    return AtLoad(variant, threads, loop, tuple(noisy(latency_s) for _ in range(ROUNDS * REQUESTS)))


def test_each_goal_has_its_best_and_ties_and_few_rounds_decide_nothing() -> None:
    own, other = timed("cpu:2", 2e-3, 5e-3), timed("cpu:1", 3e-3, 4e-3, threads=1)
    assert choices([own, other], 0.0) == {"throughput": own, "latency": other}
    assert choices([], 0.0) == {}
    assert choices([own, other], 0.21) == {}, "other programs ran"
    own, other = timed("cpu:2", 2e-3, 5e-3, noise=0.1), timed("robust", 2e-3, 5e-3, noise=0.1)
    assert set(choices([own, other], 0.0).values()) == {own}
    faster = timed("robust", 1e-3, 5e-3, noise=0.1)
    assert set(choices([own, faster], 0.0).values()) == {faster}
    own, other = timed("cpu:2", 2e-3, 5e-3, noise=0.1), timed("robust", 2e-3, 5e-3, noise=0.1)
    hit = AtLoad(own.variant, own.threads, own.loop_secs, (1.0, *own.latency_secs[1:]))
    assert choices([hit, other], 0.0)["latency"] == hit
    own, other = (AtLoad(name, 1, (secs,) * 4, (secs,) * 4) for name, secs in (("cpu:1", 2.0), ("robust", 1.0)))
    assert choices([own, other], 0.0)["latency"] == own


def test_percentiles_are_of_all_requests_and_a_p99_needs_a_hundred() -> None:
    found = AtLoad("cpu:1", 1, (1.0,) * 10, tuple(float(each) for each in range(1, 101)))
    assert (found.p50_s, found.p99_s) == (50.5, 99.0)
    assert found.round_means_s == pytest.approx([5.5 + 10 * number for number in range(10)])
    few = AtLoad("cpu:1", 1, (1.0,) * 9, found.latency_secs[:90])
    assert few.served == Served("cpu:1", 1, 1.0, few.p50_s, None)
    assert AtLoad.from_json(few.to_json()) == few


@pytest.mark.parametrize(
    "wrong",
    [
        AT_LOAD | {"threads": 0},
        AT_LOAD | {"loop_secs": []},
        AT_LOAD | {"latency_secs": []},
        AT_LOAD | {"latency_secs": [1.0] * 5},
        AT_LOAD | {"loop_secs": [1.0, 0.0]},
        AT_LOAD | {"loop_secs": [1.0, float("inf")]},
    ],
)
def test_what_no_measurement_gives_is_refused(wrong: dict[str, Any]) -> None:
    assert AtLoad.from_json(AT_LOAD).threads == 1
    with pytest.raises(ValueError, match="at load"):
        AtLoad.from_json(wrong)


@pytest.mark.parametrize(
    ("loops", "latencies", "decided"),
    [
        ([0.9, 1.1] * 3, [0.9, 1.1] * 3, True),
        ([0.9] * 6, [1.1] * 6, True),
        ([0.9, 1.1] * 3, [0.9] * 5 + [1.1], False),
        ([0.9] * 5 + [1.1], [0.9, 1.1] * 3, False),
    ],
)
def test_choices_are_decided_once_no_round_can_change_one(
    loops: list[float], latencies: list[float], *, decided: bool
) -> None:
    own = AtLoad("cpu:1", 1, (1.0,) * 6, (1.0,) * 6)
    other = AtLoad("cpu:2", 1, tuple(loops), tuple(latencies))
    assert are_decided([own, other], ROUNDS) == decided
    assert are_decided([own], ROUNDS)


def test_names_of_hundreds_of_operations_are_kept_apart() -> None:
    long = "fused_" + "_".join(["add", "abs"] * 200)
    inside = Inside((CallTime(long, 1, 2e-3), CallTime(f"{long}1", 1, 1e-3)), 4e-3, 5e-3)
    with pytest.raises(ValueError, match="longer than"):
        inside.check()
    kept = inside.brief({long: "a hash"}, {"a hash": "a schedule"})
    kept.check()
    first, second = kept.calls
    assert first.name != second.name
    assert long.startswith(first.name.partition("~")[0])
    assert (first.workload_hash, first.candidate) == ("a hash", "a schedule")
    assert (second.workload_hash, second.candidate) == ("", "")


@pytest.mark.parametrize("name", ["two\nlines", "nu\0l", "half \ud800", "\x1b" * 500, "näme" * 500])
def test_a_name_of_any_characters_can_be_kept(name: str) -> None:
    kept = Inside((CallTime(name, 1, 2e-3),), 4e-3, 5e-3).brief({name: "a hash"}, {})
    kept.check()
    assert kept.calls[0].workload_hash == "a hash"


def test_calls_beyond_the_slowest_are_one_row() -> None:
    calls = tuple(CallTime(f"call{number}", 2, 1e-3) for number in range(KEPT + 5))
    kept = Inside(calls, 1.0, 1.0).brief({}, {})
    kept.check()
    assert kept.calls[-1].name == OTHERS
    assert sum(each.calls for each in kept.calls) == 2 * len(calls)
    assert sum(each.secs for each in kept.calls) == pytest.approx(len(calls) * 1e-3)


def test_operators_that_are_slower_for_one_cause_stand_together() -> None:
    (note,) = slower_notes([("conv", "cold"), ("pool", ""), ("dense", "odd"), ("add", "cold"), ("conv", "cold")])
    assert note.endswith("alone: conv, add (cold); dense (odd)")
    assert slower_notes([("pool", "")]) == ()


def test_it_is_the_same_after_a_message_and_after_json() -> None:
    runtime_time().check()
    message = to_proto(runtime_time(), pb.RuntimeTime)
    assert message.model == f"models/{runtime_time().model}"
    assert from_proto(RuntimeTime, message) == runtime_time()
    assert RuntimeTime.from_json(json.loads(json.dumps(runtime_time().to_json()))) == runtime_time()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"time_id": "with spaces in it"}, "time_id must have 8 to 64 letters and digits"),
        ({"share": ""}, "a model, a share and a runtime"),
        ({"version": "v" * 201}, "longer than 200 characters"),
        ({"inputs": {"n" * 201: [1]}}, "longer than 200 characters"),
        ({"inputs": {"ids": [1] * 65}}, "64 axes at most"),
        ({"paced_s": 0.0}, "its times must be above 0 and finite"),
        ({"bundle_loop_s": math.inf}, "its times must be above 0 and finite"),
        ({"paced_ratio": Estimate(1.0, 1.1, 1.2)}, "ratios must be above 0 and finite"),
        ({"measured_at": -1.0}, "measure_time is missing"),
        ({"others_cores": float("inf")}, "others_cores must be 0 or more"),
    ],
)
def test_a_runtime_time_that_no_measurement_gives_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        runtime_time(**changes).check()
