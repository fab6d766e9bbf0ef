"""What the benchmarks print, count and refuse."""

import ast
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import onnx
import pytest

import benchmarks
from benchmarks import lengths, under_limit
from benchmarks.__main__ import BENCHMARKS
from benchmarks.fused import Arrangement, ratios, variant_of
from benchmarks.kernels import Convolution, convolution_of, kinds, layer_of
from benchmarks.pairs import apart_s, predicted_s, summary, together_s
from benchmarks.queue_cost import costs_of
from benchmarks.share_matrix import SHARES, summaries
from benchmarks.support import stock
from benchmarks.support.at_load import at_load_json, blocks_at_load
from benchmarks.support.match_log import fill
from benchmarks.support.models import Model
from benchmarks.support.squad_lengths import LONGEST, draw_lengths
from benchmarks.under_limit import CHOSEN, DEFAULTS, POOL, ROUNDED, SETTINGS, THROUGHPUT, WAYS
from fractune_core.analysis.co_location import RoundTimes, co_location_figures
from fractune_core.fleet.messages import CPU_BATCH
from fractune_core.records import VALIDATION_POLICY, Kind
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from tests.support.processes.cli_process import write_model

FOLDER = Path(benchmarks.__file__).parent
PEER = "stock"
"""the one program that is no benchmark: another one runs it"""


def parsed(name: str) -> ast.Module:
    return ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def has_main(name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in parsed(name).body)


def test_a_benchmark_has_main_and_documents_its_smoke_run() -> None:
    for name in BENCHMARKS:
        assert has_main(name), name
        words = (ast.get_docstring(parsed(name)) or "").split()
        assert all(each in " ".join(words) for each in ("--quick", "--out", f"python -m benchmarks.{name}")), name


def test_every_program_among_them_is_run_with_the_others() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py") if path.stem != "__main__" and has_main(path.stem)}
    assert programs - {PEER} == set(BENCHMARKS)


def test_a_result_is_one_line() -> None:
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in (FOLDER / "results").glob("**/*.json")}
    assert [path for path, count in lines.items() if count != 1] == []


def test_all_results_come_back() -> None:
    costs = costs_of(candidates=CPU_BATCH, rounds=1)
    assert {batch: len(found) for batch, found in costs.items()} == {1: 1, CPU_BATCH: 1}


def test_a_log_of_the_asked_size_with_finals_as_they_are_measured_today(tmp_path: Path) -> None:
    store = Store(sqlite_url(tmp_path))
    try:
        told = fill(store, 2_000, operators=3)
        assert store.log.count(RecordFilter()) == told["trials"] + told["finals"] == 2_000
        finals = list(store.log.all(RecordFilter(kind=Kind.VALIDATION)))
    finally:
        store.close()
    assert len(finals) == told["finals"] > 0
    assert {(each.policy, len(each.run_secs)) for each in finals} == {(VALIDATION_POLICY, VALIDATION_POLICY.repeats)}


def test_ratios_are_against_whole_cores_and_the_best_settings() -> None:
    p99_s = {CHOSEN: 0.02, ROUNDED: 0.04, DEFAULTS: 0.1, SETTINGS[0]: 0.025, SETTINGS[-1]: 0.025}
    rates = {THROUGHPUT: [10.0], POOL: [14.0, 16.0, 15.0], ROUNDED: [10.0]}
    ways = {
        way: {"p50_s": 0.01, "p99_s": p99_s.get(way, 1.0), "loop_per_s": rates.get(way, [1.0]), "chosen": ""}
        for way in WAYS
    }
    assert under_limit._line({"model": "m", "limit_m": 1500, "ways": ways}) == (
        "m at 1500m: rate 1.50x, p50 1.00x and p99 0.50x of whole cores; p99 0.20x of ONNX Runtime's defaults, "
        "0.80x of its best settings"
    )


@pytest.mark.parametrize(
    ("loop_s", "blocks", "size"),
    [
        ((40e-6, 80e-6), 10, 100),  # the most
        ((0.002, 0.003), 10, 22),
        ((0.005, 0.005), 9, 10),
        ((0.02, 0.02), 2, 11),
        ((0.3, 0.3), 2, 3),  # the fewest, which take longer
        ((0.1, 0.01), 2, 11),  # the slower one takes all of its time
    ],
)
def test_the_number_of_requests_follows_from_the_time_they_take(
    loop_s: tuple[float, float], blocks: int, size: int
) -> None:
    assert [len(block) for block in blocks_at_load(loop_s)] == [size] * blocks


def test_the_rate_is_30_percent_of_the_faster_one_s_and_arrivals_follow_from_the_seed() -> None:
    found = blocks_at_load((60e-6, 30e-6))
    assert found == blocks_at_load((30e-6, 60e-6))
    assert sum(block[-1] for block in found) == pytest.approx(1000 * 30e-6 / 0.3, rel=0.1)
    assert all(first[0] != second[0] for first, second in pairwise(found))
    assert all(block == sorted(block) for block in found)


def test_p50_is_of_the_requests_of_all_blocks() -> None:
    ours, theirs = [[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]], [[7.0, 7.0, 7.0], [7.0, 7.0, 8.0]]
    found = at_load_json({"fractune": 0.6, "openvino": 0.3}, {"fractune": ours, "openvino": theirs})
    assert (found["rate_per_s"], found["requests"]) == (pytest.approx(1.0), 6)
    assert found["p50_s"] == {"fractune": 3.5, "openvino": 7.0}


def test_the_last_line_compares_with_the_better_runtime() -> None:
    p99s = {"fractune": 0.03, "fractune as loaded": 0.02, "onnxruntime": 0.05, "openvino": 0.04}
    ratios = {"fractune": [0.9, 0.88, 0.93], "fractune as loaded": [0.8, 0.78, 0.83]}
    ways = {name: {"p99_s": secs} for name, secs in p99s.items()}
    assert lengths._line({"share": "cpu:1", "ways": ways, "best": "openvino", "ratios": ratios}) == (
        "cpu:1: fractune 0.90 (0.88 .. 0.93) of openvino's time, p99 0.75, "
        "fractune as loaded 0.80 (0.78 .. 0.83) of openvino's time, p99 0.50"
    )


def test_lengths_are_those_that_were_published() -> None:
    drawn = draw_lengths(4000, 1)
    assert draw_lengths(4000, 1) == drawn
    assert min(drawn) > 32
    assert max(drawn) <= LONGEST
    assert 140 < statistics.median(drawn) < 160


def test_phases_are_those_of_the_first_length_and_the_mean_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = {"starting": 1.0, "timing": 9.0}, {"timing": 6.0}, {"timing": 4.0}
    lengths._print_phases(
        {"phases_s": {"four": [first, second, third], "one": [first]}, "tuning_s": {"four": 25.0, "one": 12.0}}
    )
    assert capsys.readouterr().out.splitlines() == [
        "  starting        1.0 s, each further length    0.0 s",
        "  timing          9.0 s, each further length    5.0 s",
        "  four: 25.0 s, 5.0 s of them outside of jobs",
        "  one: 12.0 s, 2.0 s of them outside of jobs",
    ]


WINNERS = (*SHARES, *(f"joint {share}" for share in SHARES))
CONTESTANTS = (*WINNERS, "joint robust")


def timed(own_s: float, other_s: float, finalists: Sequence[str] = CONTESTANTS) -> dict[str, dict[str, list[float]]]:
    """By share and finalist: all take `own_s`, but what was tuned at the other share takes `other_s`."""
    return {
        share: {each: [other_s if each in SHARES and each != share else own_s] * 9 for each in finalists}
        for share in SHARES
    }


def told(operator_s: float) -> dict[str, object]:
    return {"model": timed(1.0, 1.1), "operators": {"conv": timed(operator_s, 2 * operator_s, WINNERS)}}


def test_it_tells_what_the_other_share_loses() -> None:
    found = summaries([told(0.5)])
    assert set(found) == {"model", "operators", "heavy operators"}
    assert found["model"]["other_mean"] == pytest.approx(0.1)
    assert found["model"]["robust_worst"] == 0.0
    assert found["operators"] == found["heavy operators"]
    assert found["operators"]["other_slower"] == found["operators"]["cases"] == len(SHARES)


def test_it_is_silent_about_heavy_operators_where_none_is_heavy() -> None:
    assert set(summaries([told(0.001)])) == {"model", "operators"}


def test_the_robust_pick_of_operators_is_not_told() -> None:
    assert "robust_worst" not in summaries([told(0.5)])["operators"]


@pytest.mark.parametrize(
    ("shapes", "layer", "kind"),
    [
        (
            [(1, 4, 5, 40, 16), (32, 4, 1, 1, 16, 16), (1, 32, 1, 1, 16), (1, 32, 5, 40, 16)],
            [(1, 60, 5, 40), (512, 60, 1, 1), (1, 512, 5, 40)],
            "convolution 1x1",
        ),
        (
            [(1, 2, 9, 9, 16), (2, 3, 3, 16), (1, 2, 9, 9, 16)],
            [(1, 32, 9, 9), (32, 1, 1, 3, 3), (1, 32, 9, 9)],
            "depthwise 3x3",
        ),
    ],
)
def test_an_operator_and_a_layer_of_the_same_convolution_are_paired(
    shapes: list[tuple[int, ...]], layer: list[tuple[int, ...]], kind: str
) -> None:
    found = convolution_of(shapes)
    image, weights, output = layer
    assert found == layer_of(image, weights, output, 16)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("shapes", [[(8, 8), (8, 8), (8, 8)], [(1, 2, 9, 9, 16), (1, 2, 9, 9, 16)]])
def test_other_operators_are_no_convolutions(shapes: list[tuple[int, ...]]) -> None:
    assert convolution_of(shapes) is None


def test_the_kind_with_the_most_time_above_its_roof_is_first() -> None:
    def row(kind: str, secs: float, roof_part: float | None) -> dict[str, object]:
        return {"kind": kind, "secs": secs, "roof_part": roof_part}

    found = kinds([row("near", 8.0, 0.9), row("far", 2.0, 0.25), row("far", 2.0, 0.75), row("unknown", 9.0, None)])
    assert [(each["kind"], each["operators"], each["roof_part"]) for each in found] == [
        ("far", 2, 0.5),
        ("near", 1, 0.9),
        ("unknown", 1, None),
    ]


def test_a_convolution_says_what_it_is() -> None:
    assert Convolution((5, 5), 1, 32, (4, 4)).kind == "depthwise 5x5"


def test_ratios_are_fused_over_the_others() -> None:
    found = {
        "processes": {"requests_per_s": 10.0, "p99_s": 0.4, "resident_bytes": 400},
        "in_turn": {"requests_per_s": 5.0, "p99_s": 0.5, "resident_bytes": 100},
        "fused": {"requests_per_s": 8.0, "p99_s": 0.2, "resident_bytes": 100},
    }
    alone = {name: each for name, each in found.items() if name != "fused"}
    (of_two,) = ratios({"net": {1: alone, 2: found}})["net"].values()
    assert of_two == {"of_processes": 0.8, "of_in_turn": 1.6, "p99_of_processes": 0.5, "memory": 0.25}


def test_rounds_come_together() -> None:
    made = Arrangement("fused", [], waits_s=[0.1] * 99 + [1.0], per_s=[1.0, 3.0, 2.0], resident_bytes=[5, 7, 6])
    told = made.to_json()
    assert (told["requests_per_s"], told["resident_bytes"], told["requests"]) == (2.0, 6, 100)
    assert 0.1 < told["p99_s"] < 1.0


def test_weights_that_a_file_only_fills_with_a_number_are_drawn(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("ConstantOfShape", ["s"], ["w"]),
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    tensors = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"]
    shape = onnx.numpy_helper.from_array(np.array([4, 4]), "s")
    path = tmp_path / "filled.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [shape])), path)
    nets = [onnx.load(variant_of(Model("filled", path), tmp_path / f"{seed}.onnx", seed)) for seed in (0, 1)]
    assert [node.op_type for node in nets[0].graph.node] == ["MatMul"]
    first, second = (onnx.numpy_helper.to_array(net.graph.initializer[-1]) for net in nets)
    assert first.shape == (4, 4)
    assert np.abs(first - second).min() > 0


def test_a_variant_has_weights_of_its_own_and_the_same_graph(tmp_path: Path) -> None:
    model = Model("small", write_model(tmp_path / "small.onnx"))
    nets = [onnx.load(variant_of(model, tmp_path / f"{seed}.onnx", seed)) for seed in (0, 1, 1)]
    first, second, again = ([onnx.numpy_helper.to_array(t) for t in net.graph.initializer] for net in nets)
    assert nets[0].graph.node == nets[1].graph.node
    for one, other, same in zip(first, second, again, strict=True):
        assert 0 < np.abs(one - other).max() < 0.5
        np.testing.assert_array_equal(other, same)


_IMPORTED = "torch was imported"
_FFI_IN_TWO_PROCESSES = """
import subprocess, sys
import tvm_ffi
sys.stdout.flush()
subprocess.run([sys.executable, "-c", "import tvm_ffi"], check=True)
"""


def put_torch(folder: Path) -> None:
    """A package `torch` that prints when it is imported, as installed as any other."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(f"print({_IMPORTED!r})\nraise ImportError\n")


class Seen(Exception):
    """Stock TVM would have started."""


def imports_of_torch(env: Mapping[str, str]) -> int:
    """How often PyTorch is imported by a process with TVM's FFI, and one that it starts."""
    command = [sys.executable, "-c", _FFI_IN_TWO_PROCESSES]
    ended = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout.splitlines().count(_IMPORTED)


def test_stock_tvm_never_imports_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    def instead_of_stock_tvm(_command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
        found.append(imports_of_torch(env))
        raise Seen

    put_torch(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(stock, "run_timed", instead_of_stock_tvm)
    assert imports_of_torch({}) >= 2  # the FFI does it by itself
    with pytest.raises(Seen):
        stock.tune(Model("m", tmp_path / "m.onnx"), "cpu:1", "", 1, 1, 1)
    assert found == [0]


def case(**changes: Any) -> dict[str, Any]:
    return {
        "predicted_s": 4.0,
        "together_s": [4.1, 4.2, 9.0],
        "figures": {"sides": [{"control": {"median": 0.98}}, {"control": {"median": 1.01}}]},
        "makespan_verdict": "together",
        "mean_completion_verdict": "apart",
        **changes,
    }


def test_a_makespan_is_predicted_from_whole_times_and_slow_downs() -> None:
    figures = co_location_figures([(RoundTimes(0.02, 0.03, 0.03, 0.03), RoundTimes(0.1, 0.15, 0.15, 0.2))] * 9)
    # A's 100 take 3 s, in which B does 15 of its 40; the other 25 take 2.5 s on the whole.
    assert predicted_s(figures, [100, 40]) == pytest.approx(5.5)


def test_the_summary_has_the_errors_and_how_often_the_verdicts_disagree() -> None:
    told = summary([case(), case(together_s=[4.0]), case(together_s=[3.6], mean_completion_verdict="tie")])
    assert told["makespan_error_median"] == pytest.approx(0.05)
    assert told["makespan_error_worst"] == pytest.approx(0.1)
    assert told["control_error_worst"] == pytest.approx(0.02)
    assert told["verdicts_disagree"] == 2


def co_runner(done: int | None = None) -> SimpleNamespace:
    """Takes a tenth of a second for a call, by its word; `done` of those asked for, if not all."""
    asked: list[int] = []

    def call(method: str, expected_s: float, *, begin_s: float, count: int, ended: str) -> Future[dict[str, Any]]:
        assert (method, expected_s > 0, ended != "") == ("work", True, True)
        asked.append(count)
        future: Future[dict[str, Any]] = Future()
        made = count if done is None else done
        future.set_result({"done": made, "ended_s": begin_s + 0.1 * made})
        return future

    return SimpleNamespace(call=call, asked=asked)


def test_the_one_that_is_left_goes_on_with_the_whole() -> None:
    wholes = [co_runner(), co_runner()]
    begin_s = time.monotonic()
    both: Any = SimpleNamespace(co_runners=[co_runner(), co_runner(done=30)], wholes=wholes, begin_s=lambda: begin_s)
    assert together_s(both, [20, 50]) == pytest.approx(3.0 + 2.0)
    assert [each.asked for each in wholes] == [[], [20]]
    assert apart_s(both, [20, 50]) == pytest.approx(7.0)
