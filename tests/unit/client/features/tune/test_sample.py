"""Sizes of an axis for a sample of lengths; the times in ONNX Runtime are made up."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fractune.features.tune import shape_jobs
from fractune.features.tune.shape_jobs import (
    JoinOptions,
    buckets_for,
    chosen_sizes,
    only_length,
    options_by_shape,
    read_sample,
)
from fractune.models.open_sizes import settled
from fractune_core.errors import BadModel, BadRequest
from fractune_core.files.model_files import Interface, Tensor
from fractune_core.jobs import SearchOptions
from tests.support.encoders import write_encoder


def test_one_process_times_all_lengths_at_the_first_share_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str, list[dict[str, list[int]]]]] = []

    @contextlib.contextmanager
    def process(share: str, _env: Mapping[str, str]) -> Iterator[Callable[..., Any]]:
        def call(method: str, *, path: str, several: list[dict[str, list[int]]], repeats: int) -> dict[str, Any]:
            calls.append((method, f"{path} {share}", several))
            return {"run_secs": [[9.0] + [1e-3 * shapes["ids"][1]] * (repeats - 1) for shapes in several]}

        yield call

    monkeypatch.setattr(shape_jobs, "timing_process", process)
    said: list[str] = []
    model = write_encoder(tmp_path / "m")
    found = buckets_for(model, {}, {}, "ids:1", [8, 16, 64, 64], 2, ["full", "cpu:1", "cpu:2"], said.append)
    assert found == [16, 64]
    ((method, where, shapes),) = calls
    assert (method, where) == ("time_peer_at", f"{model} cpu:1")
    assert [each["ids"] for each in shapes] == [each["mask"] for each in shapes]
    assert [shapes[0]["ids"], shapes[-1]["ids"]] == [[1, 8], [1, 64]]
    assert said[0].startswith("buckets for ids:1: 16, 64; of 4 lengths a mean of")


def interface(**inputs: list[int | str | None]) -> Interface:
    return Interface(tuple(Tensor(name, "int64", tuple(dims)) for name, dims in inputs.items()), ())


def test_the_one_length_of_a_model() -> None:
    assert only_length(interface(ids=["batch", "length"], mask=["batch", "length"], table=[7])) == "ids:1"
    assert only_length(interface(ids=[1, None], mask=[1, None])) == "ids:1"
    for held in (interface(x=[1, 3]), interface(image=["n", 3, "height", "width"])):
        with pytest.raises(BadRequest, match="--lengths auto: name the axis, as INPUT:AXIS=auto"):
            only_length(held)


def test_lengths_need_an_onnx_file(tmp_path: Path) -> None:
    (tmp_path / "none.onnx").write_bytes(b"no model")
    with pytest.raises(BadModel, match=r"none\.onnx: sizes need an ONNX file"):
        settled(tmp_path / "none.onnx", None, {"ids:1": 8})


def test_a_sample_has_a_length_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("12\n\n 7 \n", encoding="utf-8")
    assert read_sample(path) == [12, 7]
    for text, says in (
        ("12\nx\n", "line 2: 'x' is not a length from 1"),
        ("9" * 5000, "line 1: '9{40}'"),
        ("0\n", "line 1: '0'"),
        ("\n", "it has no"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadRequest, match=says):
            read_sample(path)
    with pytest.raises(BadRequest, match="cannot be read"):
        read_sample(tmp_path)


@pytest.mark.parametrize(
    ("lengths", "sample", "most", "says"),
    [
        ({"ids:1": None}, None, None, "--lengths auto chooses sizes for lengths as they are served; add --sample FILE"),
        ({"ids:1": [8]}, Path("l"), None, "--sample is for --lengths auto, and no axis has 'auto'"),
        ({}, None, 3, "--most-buckets is for --lengths auto, and no axis has 'auto'"),
    ],
)
def test_options_of_a_sample_go_together(lengths: Any, sample: Path | None, most: int | None, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        chosen_sizes(Path("m.onnx"), {}, lengths, sample, most, ["cpu:1"], print)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (JoinOptions({"idz": 1}), "--pad idz: the model has no such input; it takes ids, mask"),
        (JoinOptions({"ids": 1.5}), r"--pad ids=1\.5: the input is of the type int64; give such a number"),
        (JoinOptions(padding_error=1.0), r"padding_error is 1\.0; it must be at least 0 and below 1"),
    ],
)
def test_options_that_the_join_would_refuse_are_told_before_the_jobs(
    tmp_path: Path, options: JoinOptions, says: str
) -> None:
    model = write_encoder(tmp_path / "encoder.onnx")
    with pytest.raises(BadRequest, match=says):
        options.check(2, model)
    JoinOptions({"ids": 3, "mask": 0}, 0.5).check(2, model)
    (tmp_path / "module.json").write_text("{}", encoding="utf-8")
    JoinOptions({"x": 3}).check(2, tmp_path / "module.json")


def test_each_shape_but_the_largest_has_a_part_of_the_budget() -> None:
    shapes = {"ids": [[1, 16], [1, 64], [1, 32]]}
    first, *others = options_by_shape({"trials": 100, "seed": 3}, shapes)
    assert first == {"trials": 100, "seed": 3, "inputs": {"ids": [1, 64]}}
    assert [(each["inputs"], each["trials"], each["seed"]) for each in others] == [
        ({"ids": [1, 32]}, 20, 3),
        ({"ids": [1, 16]}, 20, 3),
    ]
    cases: list[tuple[SearchOptions, dict[str, float]]] = [
        ({}, {"trials": 52}),
        ({"minutes": 10.0}, {"trials": 52, "minutes": 2.0}),
        ({"extra_trials": 7, "trials": None}, {"extra_trials": 2}),
        ({"trials": 0}, {"trials": 0}),
    ]
    for given, wanted in cases:
        _, second, _ = options_by_shape(given, shapes)
        assert {name: each for name, each in second.items() if name != "inputs" and each is not None} == wanted
    assert options_by_shape({"trials": 5}, {"x": [1, 3]}) == [{"trials": 5, "inputs": {"x": [1, 3]}}]
