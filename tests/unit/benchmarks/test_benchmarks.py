"""What the benchmarks print, count and refuse."""

import ast
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

import benchmarks
from benchmarks.__main__ import BENCHMARKS
from benchmarks.kernels import convolution_of, layer_of
from benchmarks.pairs import apart_s, together_s
from benchmarks.share_matrix import SHARES
from benchmarks.support import stock
from benchmarks.support.at_load import blocks_at_load
from benchmarks.support.match_log import fill
from benchmarks.support.models import Model
from fractune_core.records import VALIDATION_POLICY, Kind
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url

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
