"""The calls inside a model: each by name, nested ones once, and their table."""

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from fractune.features.inside import inside_rows, inside_table
from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.files.bundles import Bundle
from fractune_runtime.loading import load
from fractune_runtime.tvm_runtime import inside
from tests.support.real_bundle import Small


def bundle(how: str = "exact") -> Bundle:
    """Two kernels of one operator, which takes 1 ms alone."""
    chosen = {"cpu:1": {"record": "r", "how": how}}
    operator = {"name": "conv", "workload_hash": "h", "weight": 3, "by_variant": chosen}
    return cast(
        "Bundle",
        SimpleNamespace(
            manifest={"operators": [operator]},
            records=lambda: [{"record_id": "r", "candidate_id": "c", "run_secs": [0.9e-3, 1e-3, 1.1e-3]}],
        ),
    )


def found(conv_s: float = 2e-3) -> Inside:
    calls = (
        CallTime("conv", 2, conv_s, "h"),
        CallTime("conv1", 1, conv_s / 2, "h"),
        CallTime("softmax", 1, 0.5e-3),
        CallTime("vm.builtin.alloc_tensor", 9, 0.1e-3),
    )
    return Inside(calls, whole_s=4e-3, clocked_s=4.2e-3)


def test_kernels_of_an_operator_are_one_row_beside_its_time_alone_and_all_else_has_a_name() -> None:
    rows = inside_rows(bundle(), "cpu:1", found())
    assert [(row.name, row.kind, row.calls) for row in rows] == [
        ("conv", "operator", 3),
        ("softmax", "kernel without a task", 1),
        ("alloc_tensor", "other call", 9),
        ("between calls", "other call", 0),
    ]
    assert [row.alone_s for row in rows] == [pytest.approx(3e-3), None, None, None]
    assert sum(row.inside_s for row in rows) == pytest.approx(4e-3)


@pytest.mark.parametrize(("conv_s", "is_marked"), [(2e-3, False), (2.59e-3, False), (2.61e-3, True)])
def test_an_operator_is_marked_from_1_3_times_its_time_alone(*, conv_s: float, is_marked: bool) -> None:
    table = inside_table(inside_rows(bundle(), "cpu:1", found(conv_s)), found(conv_s))
    assert table.cells[0][3].endswith("+") == table.rows[0]["is_slower"] == is_marked
    assert any("as long as alone" in note for note in table.notes) == is_marked


def test_a_bundle_names_the_schedules_of_a_variant_and_none_for_an_untuned_operator() -> None:
    assert Bundle.candidates(bundle(), "cpu:1") == {"h": "c"}
    assert Bundle.candidates(bundle(), "untuned") == {}


def test_an_untuned_operator_has_the_time_of_its_default_alone() -> None:
    untuned = bundle("none")
    untuned.manifest["operators"][0].update(
        by_variant={"cpu:1": {"record": None, "how": "none"}}, untuned_s={"cpu:1": 2e-3}
    )
    assert inside_rows(untuned, "cpu:1", found())[0].alone_s == pytest.approx(6e-3)
    assert inside_rows(untuned, "cpu:2", found())[0].alone_s is None


def test_a_time_at_another_share_is_not_the_time_alone() -> None:
    assert [row.alone_s for row in inside_rows(bundle("near"), "cpu:1", found())] == [None] * 4


def test_calls_beyond_the_slowest_are_summed_up_by_kind() -> None:
    calls = tuple(CallTime(f"kernel{number}", 1, 1e-3) for number in range(1000))
    whole = Inside(calls, 1.1, 1.2)
    table = inside_table(inside_rows(bundle(), "cpu:1", whole), whole)
    assert len(table.cells) == 32
    assert table.cells[-2][:3] == ("970 others", "kernel without a task", "970")
    assert table.cells[-1][0] == "between calls"


def test_a_call_within_a_call_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 7.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    clock: Any = inside._Clock()
    for name, before in (("outer", True), ("inner", True), ("inner", False), ("outer", False)):
        assert clock.note(None, name, before, None) == 0
    assert clock.secs == {"inner": 2.0, "outer": 5.0}


def test_what_the_clock_takes_is_in_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 1 us within each call and 2 us outside of it, so within the call that makes this one."""
    now, clocks = [0.0], list[Any]([None])
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def call(name: str, secs: float, *made: str) -> None:
        note = clocks[0]
        if note:
            note(None, name, *(True, None))
        now[0] += secs + (1e-6 if note else 0.0)
        for each in made:
            call(each, 0.0)
        if note:
            note(None, name, *(False, None))
            now[0] += 2e-6

    def run() -> None:
        call("conv", 10e-6)
        call("branch", 5e-6, *["null_value"] * 4)

    variant: Any = SimpleNamespace(instrument=partial(clocks.__setitem__, 0))
    timed = inside.time_inside(variant, run)
    assert {each.name: each.secs for each in timed.calls} == pytest.approx(
        {"conv": 10e-6, "branch": 5e-6, "null_value": 0.0}, abs=1e-12
    )
    assert (timed.whole_s, timed.clocked_s) == pytest.approx((15e-6, 33e-6))


def test_the_parts_of_a_tiny_model_are_at_most_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of no time shows none of the clock's own, which lies in the other one."""
    now, clocks = [0.0], list[Any]([None])
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def run() -> None:
        for name, clocked_s, secs in (("conv", 3e-6, 1e-6), ("null_value", 0.0, 0.0)):
            note = clocks[0] or (lambda *_: 0)
            note(None, name, *(True, None))
            now[0] += clocked_s if clocks[0] else secs
            note(None, name, *(False, None))

    variant: Any = SimpleNamespace(instrument=partial(clocks.__setitem__, 0))
    timed = inside.time_inside(variant, run)
    assert sum(each.secs for each in timed.calls) == pytest.approx(timed.whole_s) == pytest.approx(1e-6)


def test_what_interrupts_some_runs_is_not_time_between_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two kernels, each is interrupted in one run of three: two runs of three are, and their median too."""
    now, runs, clocks = [0.0], [0], list[Any]([None])
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def run() -> None:
        runs[0] += 1
        for at, name in enumerate(("conv", "dense")):
            note = clocks[0] or (lambda *_: 0)
            note(None, name, *(True, None))
            now[0] += 9e-3 if runs[0] % 3 == at else 1e-3
            note(None, name, *(False, None))

    variant: Any = SimpleNamespace(instrument=partial(clocks.__setitem__, 0))
    timed = inside.time_inside(variant, run)
    assert {each.name: each.secs for each in timed.calls} == pytest.approx({"conv": 1e-3, "dense": 1e-3})
    assert timed.whole_s == pytest.approx(2e-3)
    assert timed.between_s == pytest.approx(0.0, abs=1e-9)


def test_kernels_of_a_compiled_model_run_by_the_names_in_its_manifest(small: Small) -> None:
    model = load(small.bundle)
    inputs = model.random_inputs()
    before = model.run(inputs)
    timed = model.time_inside(inputs)
    variant = next(each for each in model.bundle.variants if each["name"] == model.choice.variant)
    assert variant["kernels"].keys() <= {each.name for each in timed.calls}
    assert timed.whole_s > 0
    assert all(each.calls and each.secs >= 0 for each in timed.calls)
    assert sum(each.secs for each in timed.calls) > 0
    assert [(one == other).all() for one, other in zip(model.run(inputs), before, strict=True)] == [True] * len(before)


def test_the_table_fits_80_columns() -> None:
    calls = (
        CallTime("fused_conv2d1_add1_relu1_and_what_follows", 100, 99.9e-3),
        CallTime("vm.builtin.reshape", 1, 1.0),
    )
    whole = Inside(calls, 1.2, 1.3)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(inside_table(inside_rows(bundle(), "cpu:1", whole), whole).fitted(80))
    assert max(map(len, captured.get().splitlines())) <= 80
    assert "left out" not in captured.get()
