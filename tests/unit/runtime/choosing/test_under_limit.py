"""The variant, the threads and the replicas of a model under a CPU limit, predicted or as requested."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune_core.analysis.match import DEFAULT_POLICY, How
from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.files.bundles import Bundle, write_bundle
from fractune_core.host.cpus import Quota
from fractune_core.served import ServiceGoal
from fractune_runtime import cpu
from fractune_runtime.choosing import VariantChoice, match_share
from fractune_runtime.cpu import ShareHere
from fractune_runtime.replica_pool import choose_replicas
from fractune_runtime.runner import CallersThread, Runner
from tests.support.client_samples import bundle_at
from tests.support.real_bundle import Small

MINILM = {"cpu:1": 0.0184, "cpu:2": 0.0096}


def a_bundle(times: dict[str, float], **changes: Any) -> Bundle:
    """With a variant for each share, timed there."""
    measured = {name: {name: secs} for name, secs in times.items()}
    return Bundle(bundle_at(*(int(name.removeprefix("cpu:")) for name in times), **{"measured": measured, **changes}))


def here(quota_m: int, cpus: int = 2, period_us: int = 100_000) -> ShareHere:
    quota = Quota(quota_m * period_us // 1000, period_us)
    return ShareHere(max(1, quota_m // 1000), tuple(range(cpus)), "made up", quota=quota)


def matched(bundle: Bundle, at: ShareHere, goal: ServiceGoal = "latency") -> VariantChoice:
    choice, share = match_share(bundle, at, DEFAULT_POLICY, goal)
    assert share.units == choice.threads
    return choice


def test_two_threads_at_one_and_a_half_cores() -> None:
    found = matched(a_bundle(MINILM), here(1500))
    assert (found.variant, found.how, found.regret) == ("cpu:2", How.EXACT, 0.0)
    assert found.threads == 2
    told, _, other = found.reason.partition("; ")
    assert told.startswith("under a limit of 1500m, predicted best with 2 threads: p50 9.65 ms, p99 ")
    assert told.endswith(" ms at 23.4 requests/s (30 % load)")
    assert other.startswith("next best with 1 thread: p50 18.4 ms, p99 ")


def test_steps_of_a_decoder_have_two_threads_though_requests_with_pauses_have_one() -> None:
    times = {"cpu:1": 0.004, "cpu:2": 0.0045}
    rows = {"name": "more", "dtype": "float32", "shape": [1, 4]}
    cached: dict[str, Any] = {"caches": [{"input": "data", "output": "more", "axis": 1}], "outputs": [rows]}
    assert matched(a_bundle(times), here(1500)).threads == 1
    found = matched(a_bundle(times, **cached), here(1500))
    assert (found.variant, found.threads) == ("cpu:2", 2)
    assert found.reason.endswith(
        "; under a limit of 1500m, steps of a decoder take both threads while its budget lasts, else one"
    )
    assert matched(a_bundle(times, measured={}, **cached), here(1500)).threads == 2, "without times too"
    for other in (here(1000), here(2000), here(2500, 4), here(1500, cpus=1)):
        assert "steps of a decoder" not in matched(a_bundle(times, **cached), other).reason
    assert matched(a_bundle({"cpu:1": 60e-6, "cpu:2": 35e-6}, **cached), here(1500)).threads == 1


BY_EIGHTS = {f"cpu:{threads}": 0.008 / threads for threads in (1, 2, 4, 8)}
UNTUNED_FASTEST = {"cpu:1": {"cpu:1": 0.02, "untuned": 0.01}, "cpu:2": {"cpu:2": 0.015, "untuned": 0.005}}


@pytest.mark.parametrize(
    ("bundle", "at", "variant", "threads", "says"),
    [
        # no more threads than CPUs, and than four for each core
        (a_bundle(BY_EIGHTS), here(3500, 8), "cpu:8", 8, ""),
        (a_bundle(BY_EIGHTS), here(3500, 4), "cpu:4", 4, ""),
        (a_bundle(BY_EIGHTS), here(1900, 8), "cpu:4", 4, ""),
        (a_bundle(BY_EIGHTS), here(250, 8), "cpu:1", 1, ""),
        # several need slices of the period
        (a_bundle(MINILM), here(1500, period_us=10_000), "cpu:1", 1, "under a limit of 1500m in periods of 10 ms, "),
        (a_bundle(MINILM), here(1500, period_us=10_000), "cpu:1", 1, "has times for no other number of threads here"),
        # no time is interpolated
        (a_bundle({"cpu:1": 0.04, "cpu:4": 0.012}), here(2500, 4), "cpu:4", 4, "next best with 1 thread"),
        # times of the whole model come before sums of operators, where they compare
        (a_bundle(MINILM, timed={"cpu:1": 0.03, "cpu:2": 0.05}), here(1500), "cpu:1", 1, ""),
        (a_bundle(MINILM, timed={"cpu:2": 0.05}), here(1500), "cpu:2", 2, ""),
        (a_bundle(MINILM, measured=UNTUNED_FASTEST), here(1500), "untuned", 2, ""),
        # a pool costs a tiny model more than it gains
        (a_bundle({"cpu:1": 60e-6, "cpu:2": 35e-6}), here(1500), "cpu:1", 1, ""),
        (a_bundle({"cpu:1": 600e-6, "cpu:2": 350e-6}), here(1500), "cpu:2", 2, ""),
        (
            *(a_bundle(MINILM, measured={}), here(1500), "cpu:1", 1),
            "; the limit of 1500m counts as 1 core, because the bundle has no times to predict its effect",
        ),
        (a_bundle(MINILM), ShareHere(1, (0, 1), "made up", quota=Quota(1_001, 3_000)), "cpu:1", 1, ""),
    ],
)
def test_the_threads_under_a_limit(bundle: Bundle, at: ShareHere, variant: str, threads: int, says: str) -> None:
    found = matched(bundle, at)
    assert (found.variant, found.threads) == (variant, threads)
    assert says in found.reason


def test_the_most_requests_in_a_loop_where_that_is_the_goal() -> None:
    assert matched(a_bundle(MINILM), here(1000), "throughput").variant == "cpu:1"
    assert matched(a_bundle(MINILM), here(1500), "throughput").reason == (
        "under a limit of 1500m, predicted best with 2 threads: 75.8 requests/s in a loop; "
        "next best with 1 thread: 54.3 requests/s"
    )


def test_a_disturbed_time_of_the_whole_model_chooses_nothing() -> None:
    times = {"cpu:1": 0.03, "cpu:2": 0.05}
    disturbed = a_bundle(MINILM, timed=times, others_cores={"cpu:2": 0.8})
    assert matched(disturbed, here(1500)) == matched(a_bundle(MINILM), here(1500))
    assert matched(a_bundle(MINILM, timed=times, others_cores={"cpu:2": 0.2}), here(1500)).threads == 1


def test_a_choice_takes_little_time_for_slow_models_and_many_numbers() -> None:
    times = {f"cpu:{threads}": 0.8 / threads for threads in (1, 2, 4, 8, 16)}
    bundle = a_bundle(times)
    matched(bundle, here(1500))
    began = time.process_time()
    matched(bundle, here(4500, cpus=16))
    assert time.process_time() - began < 0.25, "it takes 30 ms on an idle core"


@pytest.fixture
def small_with_times(small: Small, tmp_path: Path) -> Path:
    path = tmp_path / "timed.fractune"
    bundle = Bundle(small.bundle)
    entries = {name: bundle.read(name) for name in bundle.manifest["sha256"]}
    measured = {name: {name: secs} for name, secs in MINILM.items()}
    with path.open("wb") as file:
        write_bundle(file, {**bundle.manifest, "measured": measured, "choosing": measured}, entries)
    return path


def test_a_model_takes_the_threads_and_rematch_follows_the_quota(
    small_with_times: Path, two_cpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.sched_setaffinity(0, two_cpus)

    def limited(quota_m: int) -> None:
        monkeypatch.setattr(cpu, "tightest_quota", lambda _: Quota(100 * quota_m, 100_000))

    limited(1500)
    model = fractune.load(small_with_times)
    assert (model.choice.variant, model.threads, model.share.units, type(model._runner)) == ("cpu:2", 2, 2, Runner)
    assert model.share.reason == "1.5 cores by the quota of its cgroup (its affinity has 2 cores)"
    runner = model._runner
    assert model.rematch() is model.choice
    assert model._runner is runner, "the same share needs no new threads"
    limited(250)
    assert (model.rematch().variant, model.threads, type(model._runner)) == ("cpu:1", 1, CallersThread)
    assert model.run(model.random_inputs())[0].shape == (1, 10)
    limited(1000)
    assert fractune.load(small_with_times).threads == 2
    assert fractune.load(small_with_times, goal="throughput").threads == 1
    assert fractune.InferenceSession(small_with_times, goal="throughput").model.threads == 1
    assert fractune.load(small_with_times, share="cpu:1").choice.reason.startswith("it was tuned for 1 core")


def test_an_unknown_goal_is_refused(small: Small) -> None:
    for load in (fractune.load, fractune.InferenceSession):
        with pytest.raises(BadRequest, match="goal"):
            load(small.bundle, goal="speed")  # type: ignore[arg-type]


def test_two_threads_under_half_a_core() -> None:
    """Without a request it is one thread there (for the goal of a loop)."""
    found, share = match_share(a_bundle(MINILM), here(500), DEFAULT_POLICY, "throughput", 2)
    assert (found.variant, found.threads, share.units) == ("cpu:2", 2, 2)
    assert found.reason.endswith("; 2 threads, as requested")


def test_there_must_be_a_cpu_for_each() -> None:
    with pytest.raises(ShareUnavailable, match="threads is 3, and there are 2 CPUs; ask for 2 at most"):
        match_share(a_bundle(MINILM), here(500), DEFAULT_POLICY, "latency", 3)


def test_a_model_and_a_pool_have_them(small: Small) -> None:
    model = fractune.load(small.bundle, threads=1)
    assert model.threads == 1
    assert model.run(model.random_inputs())
    with fractune.ReplicaPool(small.bundle, replicas=1, threads=1) as pool:
        assert (pool.replicas, pool.threads) == (1, 1)
        assert pool.run(pool.random_inputs())


@pytest.mark.parametrize("threads", [0, -1])
def test_no_model_has_fewer_than_one(small: Small, threads: int) -> None:
    with pytest.raises(BadRequest, match=f"threads is {threads}; give 1 or more"):
        fractune.load(small.bundle, threads=threads)


def whole(cores: int) -> ShareHere:
    return ShareHere(cores, tuple(range(cores)), "made up")


def division(at: ShareHere, times: dict[str, float] = MINILM, replicas: int | None = None, **changes: Any) -> Any:
    count, choice = choose_replicas(a_bundle(times, **changes), at, DEFAULT_POLICY, replicas)
    return count, choice.threads, choice.variant


def reason(at: ShareHere, replicas: int | None = None, **changes: Any) -> str:
    return choose_replicas(a_bundle(MINILM, **changes), at, DEFAULT_POLICY, replicas)[1].reason


@pytest.mark.parametrize(
    ("at", "times", "replicas", "found"),
    [
        (here(1500), MINILM, None, (2, 1, "cpu:1")),
        (here(1500), MINILM, 1, (1, 2, "cpu:2")),
        # the fewest threads of equally fast divisions
        (here(1000), MINILM, None, (1, 1, "cpu:1")),
        (here(500), MINILM, None, (1, 1, "cpu:1")),
        (whole(2), MINILM, None, (2, 1, "cpu:1")),
        (whole(5), MINILM, None, (5, 1, "cpu:1")),
        (whole(4), MINILM, 2, (2, 2, "cpu:2")),
        (whole(4), MINILM, 3, (3, 1, "cpu:1")),
        (whole(2), MINILM, 5, (5, 1, "cpu:1")),  # more than CPUs: they share them
        # threads that gain more than replicas
        (whole(4), {"cpu:1": 0.020, "cpu:2": 0.009}, None, (2, 2, "cpu:2")),
        (here(3500, cpus=4), {"cpu:1": 0.020, "cpu:2": 0.009}, None, (2, 2, "cpu:2")),
        # replicas need slices of the period
        (here(2500, cpus=3, period_us=10_000), MINILM, None, (1, 1, "cpu:1")),
    ],
)
def test_replicas_and_their_threads(at: ShareHere, times: dict[str, float], replicas: int | None, found: Any) -> None:
    assert division(at, times, replicas) == found


def test_the_reason_of_a_division_has_its_rate() -> None:
    """Measured of MiniLM: 81.6 requests/s, and 75.9 with one replica of two threads (docs/cpu-limits.md)."""
    assert reason(here(1500)) == (
        "under a limit of 1500m, predicted best with 2 replicas of 1 thread: 81.5 requests/s in a loop; "
        "next best with 1 replica of 2 threads: 75.8"
    )
    assert reason(whole(2)).startswith("on 2 cores, predicted best with 2 replicas of 1 thread: 108 requests/s in")


def test_a_given_number_of_threads() -> None:
    count, found = choose_replicas(a_bundle(MINILM), whole(4), DEFAULT_POLICY, None, 2)
    assert (count, found.threads, found.variant) == (2, 2, "cpu:2")
    count, found = choose_replicas(a_bundle(MINILM), here(500), DEFAULT_POLICY, 1, 2)
    assert (count, found.threads, found.variant) == (1, 2, "cpu:2")
    count, untimed = choose_replicas(a_bundle(MINILM), whole(4), DEFAULT_POLICY, None, 3)
    assert (count, untimed.threads) == (1, 3)
    with pytest.raises(ShareUnavailable, match="threads is 3, and there are 2 CPUs; ask for 2 at most"):
        choose_replicas(a_bundle(MINILM), whole(2), DEFAULT_POLICY, None, 3)


@pytest.mark.parametrize(("replicas", "found"), [(None, (2, 1, "cpu:1")), (1, (1, 2, "cpu:2"))])
def test_without_times_each_whole_core_gets_a_thread(replicas: int | None, found: Any) -> None:
    assert division(whole(2), replicas=replicas, measured={}) == found
    assert "on 2 cores, because the bundle has no times there" in reason(whole(2), replicas, measured={})
