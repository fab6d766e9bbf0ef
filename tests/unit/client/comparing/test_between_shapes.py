"""At which sizes between two shapes other runtimes are timed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune import BucketedModel
from fractune.comparing import beside, padded_outputs
from fractune.comparing.beside import Contenders
from fractune.comparing.padded_outputs import find_largest, gaps, near, part_of_gap, time_between_shapes
from fractune_core.files.compared import Compared, Runtime, Timed
from fractune_runtime import sessions
from tests.support.encoders import inputs_of
from tests.support.real_bundle import ENCODER, ENCODER_SHAPES


@pytest.mark.parametrize(
    ("bucket", "found"),
    [
        (0, [("batch", 1), ("length", 1)]),
        (1, [("batch", 1), ("length", 17)]),
        (2, [("batch", 3), ("length", 1)]),
        (3, [("batch", 3), ("length", 17)]),
    ],
)
def test_smaller_sizes_that_run_padded_in_a_bucket(bucket: int, found: list[tuple[str, int]]) -> None:
    sizes = [(2, 16), (2, 32), (4, 16), (4, 32)]
    assert list(gaps([{"batch": batch, "length": length} for batch, length in sizes], bucket)) == found


def test_an_axis_without_smaller_sizes_is_left_out() -> None:
    assert list(gaps([{"batch": 1, "length": 1}, {"batch": 1, "length": 2}], 1)) == []
    assert list(gaps([{"batch": 1, "length": 1}, {"batch": 1, "length": 3}], 1)) == [("length", 2)]


@pytest.mark.parametrize("guess", [1, 2, 30, 60])
@pytest.mark.parametrize("largest", [1, 2, 40, 63])
def test_the_largest_size_is_found_below_the_guess(largest: int, guess: int) -> None:
    asked: list[int] = []

    def holds(size: int) -> bool:
        asked.append(size)
        return size <= largest

    find_largest(1, 64, guess, holds)
    held = max((size for size in asked if size <= largest), default=1)
    assert held == guess or largest - held <= 7 or guess == 1
    assert len(asked) <= 5
    assert asked[:1] == ([] if guess == 1 else [guess])


@pytest.mark.parametrize(
    ("size", "sizes"), [(9, [9, 10, 11, 12]), (10, [9, 10, 11, 12]), (12, [9, 10, 11, 12]), (15, [12, 13, 14, 15])]
)
def test_sizes_near_one_take_turns_with_it(size: int, sizes: list[int]) -> None:
    assert list(near(size, 9, 16)) == sizes
    assert list(near(9, 9, 11)) == [9, 10]


def at_sizes(padded_s: float, runtime_s: float, ratio: tuple[float, float, float] = (2.0, 1.9, 2.1)) -> Compared:
    return Compared({"fractune": Timed(padded_s, padded_s), "onnxruntime": Timed(runtime_s, runtime_s, ratio, ratio)})


@pytest.mark.parametrize(("smallest_s", "whole_s", "part"), [(1.0, 3.0, 0.5), (1.0, 2.0, 1.0), (1.0, 0.5, 1.0)])
def test_where_a_runtime_should_be_as_slow_as_a_padded_run(smallest_s: float, whole_s: float, part: float) -> None:
    assert part_of_gap(at_sizes(2.0, smallest_s), at_sizes(2.0, whole_s)) == part


def simulated(monkeypatch: pytest.MonkeyPatch, wins: list[bool]) -> list[list[str]]:
    """Contests are simulated: ONNX Runtime wins some, OpenVINO none. Returns the runtimes that they were asked for."""
    asked: list[list[str]] = []

    def compare(_model: Any, requests: Any, _file: Any, names: list[str]) -> tuple[Compared, dict[str, Runtime]]:
        assert len({inputs["ids"].shape[1] for inputs in requests}) == 4
        won = {"onnxruntime": wins[len(asked)], "openvino": False}
        asked.append(list(names))
        ratios = {name: (2.0, 1.9, 2.1) if won[name] else (0.9, 0.8, 0.95) for name in names}
        times = {name: Timed(1.0, 1.0, ratio, ratio) for name, ratio in ratios.items()}
        return Compared({"fractune": Timed(1.0, 1.0), **times}), {name: Runtime("1", {}) for name in names}

    monkeypatch.setattr(padded_outputs, "time_beside_runtimes", compare)
    return asked


@pytest.mark.parametrize(
    ("wins", "sizes"),
    [([False], [9]), ([True, False, False, True, False], [9, 15, 12, 10, 11]), ([True, True], [9, 15])],
)
def test_a_runtime_that_loses_at_the_smallest_size_is_timed_at_no_other(
    encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wins: list[bool], sizes: list[int]
) -> None:
    files = [encoders / f"{ENCODER}-{batch}x{length}.fractune" for batch, length in ENCODER_SHAPES[ENCODER]]
    model = fractune.load(fractune.join(files, out=tmp_path / "joined.fractune"))
    assert isinstance(model, BucketedModel)
    asked = simulated(monkeypatch, wins)
    file = Contenders(b"", is_quantized=False, exact=True, repeats=6)
    exact = Compared({name: Timed(1.0, 1.0) for name in ("fractune", "onnxruntime", "openvino")})
    found, used = time_between_shapes(model, 1, file, exact)
    assert [each.sizes for each in found] == [{"batch": 1, "length": size} for size in sizes]
    assert asked == [["onnxruntime", "openvino"], *[["onnxruntime"]] * (len(sizes) - 1)]
    assert used.keys() == {"onnxruntime", "openvino"}


def test_every_request_of_a_contest_has_another_size_than_the_one_before(
    encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [encoders / f"{ENCODER}-{batch}x{length}.fractune" for batch, length in ENCODER_SHAPES[ENCODER]]
    model = fractune.load(fractune.join(files, out=tmp_path / "joined.fractune"), runtimes=False)
    opened, lengths = sessions.open_session, list[int]()

    def open_session(*given: Any) -> Any:
        session = opened(*given)
        run = session.run

        def noted(feed: dict[str, Any]) -> Any:
            lengths.append(feed["ids"].shape[1])
            return run(feed)

        monkeypatch.setattr(session, "run", noted)
        return session

    monkeypatch.setattr(beside, "open_session", open_session)
    file = Contenders((encoders / f"{ENCODER}.onnx").read_bytes(), is_quantized=False, exact=True, repeats=2)
    requests = [inputs_of(length) for length in (9, 10, 11)]
    compared, _ = beside.time_beside_runtimes(model, requests, file, ["onnxruntime"])
    assert compared.times.keys() == {"fractune", "onnxruntime"}
    assert lengths[:3] == [9, 10, 11]  # whose outputs are compared
    assert all(one != other for one, other in pairwise(lengths[3:]))
    assert set(lengths[3:]) == {9, 10, 11}
