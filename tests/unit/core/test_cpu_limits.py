"""The text of CPU limits, and their place in a record."""

import random

import pytest
from hypothesis import given, strategies as st

from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.cpu_limits import GrantedLimit, LimitSize
from fractune_core.errors import BadRequest
from fractune_core.fleet.options import WorkerOptions
from fractune_core.jobs import JobSpec
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.served import latencies, poisson
from fractune_core.shares import GrantedShare, Share, with_kernel_shares


@pytest.mark.parametrize(
    ("text", "limit_m", "request_m", "span", "period_ms", "cores"),
    [
        ("cpu:1500m", 1500, 0, 0, 100, 2),
        ("cpu:500m..1500m", 1500, 500, 0, 100, 2),
        ("cpu:1500m..1500m", 1500, 1500, 0, 100, 2),
        ("cpu:250m@2", 250, 0, 2, 100, 2),
        ("cpu:500m..1500m@4/20ms", 1500, 500, 4, 20, 4),
        ("cpu:10m", 10, 0, 0, 100, 1),
    ],
)
def test_a_limit_has_up_to_four_parts(
    text: str, limit_m: int, request_m: int, span: int, period_ms: int, cores: int
) -> None:
    share = Share.parse(text)
    assert LimitSize.parse(share.size) == LimitSize(limit_m, request_m, span, period_ms)
    assert (share.mechanism, str(share), share.cores) == ("cpu-limit", text, cores)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu:0m", "0m allows no CPU time; write a limit above 0, such as cpu:500m"),
        ("cpu:1500m..500m", "the request of 1500m is above the limit of 500m; write cpu:500m..1500m"),
        ("cpu:500m/1ns", "'1ns' is not a period; write whole milliseconds from 1ms to 1000ms, such as cpu:1500m/10ms"),
        ("cpu:500m/2000ms", "a period of 2000ms is too long; write 1ms to 1000ms"),
        ("cpu:500m/100ms", "100ms is the usual period; write cpu:500m"),
        ("cpu:5m", "5m of 100ms is less than the kernel's least quota of 1 ms; write 10m or more"),
        ("cpu:1500m@1", "1500m cannot be used on 1 CPU; write @2"),
        ("cpu:1.5m", "'1.5m' is not a CPU limit; write cpu:1500m"),
        ("cpu:1.5", "a limit is written in thousandths of a core: write cpu:1500m"),
        ("cpu:.25", "write cpu:250m"),
        ("cpu:0500m", "'0500m' is not a CPU limit"),
        ("cpu:500m@0", "'500m@0' is not a CPU limit"),
    ],
)
def test_a_wrong_limit_is_one_line_that_says_what_would_do(text: str, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        Share.parse(text)
    assert str(refused.value).startswith(f"share '{text}': ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_two_cores_of_time_are_not_two_cores() -> None:
    assert Share.parse("cpu:2000m") != Share.parse("cpu:2")


@given(st.integers(1, 4096), st.integers(0, 4096), st.integers(0, 8), st.integers(1, 1000))
def test_each_limit_has_one_text(limit_m: int, request_m: int, span: int, period_ms: int) -> None:
    size = LimitSize(limit_m, request_m, span, period_ms)
    try:
        assert LimitSize.parse(str(size)) == size
    except BadRequest:
        assert request_m > limit_m or limit_m * period_ms < 1000 or (span and limit_m > 1000 * span)


def granted(**changes: int) -> GrantedShare:
    limit = {"quota_m": 1500, "request_m": 0, "span": 2, "period_us": 100_000, "burst_us": 0, "burned_m": 1497}
    return GrantedShare(
        "cpu:1500m", 1500, 2000, "millicore", 1 << 30, reserved=False, ids=(0, 1), limit=GrantedLimit(**limit | changes)
    )


def test_a_granted_limit_is_kept_in_json_and_messages() -> None:
    assert GrantedShare.from_json(granted().to_json()) == granted()
    assert from_proto(GrantedShare, to_proto(granted(), pb.GrantedShare)) == granted()


def test_limits_are_the_same_share_if_all_that_affects_speed_is_the_same() -> None:
    assert granted().key == granted(burned_m=1510).key
    others = [granted(span=4), granted(period_us=10_000), granted(burst_us=50_000), granted(request_m=500)]
    assert len({each.key for each in (granted(), *others)}) == 5


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("cpu:1500m", ["cpu:1", "cpu:2"]),
        ("cpu:500m", ["cpu:1"]),
        ("cpu:250m@2", ["cpu:1", "cpu:2"]),
        ("cpu:500m..6000m/10ms", ["cpu:1", "cpu:2", "cpu:4", "cpu:6"]),
        ("cpu:3", ["cpu:3"]),
        ("mps:25", ["mps:25"]),
    ],
)
def test_kernels_of_a_limit_are_measured_at_the_whole_cores_that_it_spans(text: str, cores: list[str]) -> None:
    assert [str(share) for share in Share.parse(text).kernel_shares] == cores
    assert with_kernel_shares([text]) == tuple(dict.fromkeys([*cores, text]))


@pytest.mark.parametrize("text", ["cpu:1500m", "cpu:500m..1500m@2"])
def test_models_are_tuned_for_a_limit_and_no_kernel_is_measured_under_it(text: str) -> None:
    JobSpec(model="models/1", model_name="net", shares=("cpu:1", text)).check()
    assert WorkerOptions(role="measure", redis_url="redis://localhost", secret=b"s", share=text).measures_on_cpu
    share = Share.parse(text)
    with pytest.raises(BadRequest, match=rf"^share '{text}': under a CPU limit only whole .*; write cpu:1, cpu:2$"):
        share.check_measures_kernels()
    with pytest.raises(BadRequest, match=rf"^share '{text}': a process cannot put itself under a CPU limit; start it"):
        share.check_serves("cpu")


class Clock:
    """Time that passes only in calls and sleeps; a timer wakes late by `late_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 100.0, late_s
        monkeypatch.setattr("fractune_core.served.time", self)

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, secs: float) -> None:
        self.now_s += secs + self.late_s

    def work(self, secs: float) -> None:
        self.now_s += secs


def test_a_request_waits_for_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert latencies(lambda: clock.work(2.0), [1.0, 2.0, 2.5, 20.0]) == pytest.approx([2.0, 3.0, 4.5, 2.0])


def test_the_delay_of_a_timer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, late_s=0.25)
    assert latencies(lambda: clock.work(2.0), [1.0, 2.0, 20.0]) == pytest.approx([2.0, 3.25, 2.0])


def test_arrivals_have_the_rate_and_follow_from_the_seed() -> None:
    arrivals_s = poisson(50.0, 2_000, random.Random(1))
    assert arrivals_s == poisson(50.0, 2_000, random.Random(1))
    assert arrivals_s == sorted(arrivals_s)
    assert arrivals_s[-1] == pytest.approx(40.0, rel=0.1)
