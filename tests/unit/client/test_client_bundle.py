"""A bundle at inference, as far as it goes without loading code: share, variant, inputs, processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.client_samples import DEVICE, bundle_bytes
from tuner_client.bundle import InputSpec, Model, choose_variant, differences, read_inputs
from tuner_core.bundles import Bundle
from tuner_core.errors import BadBundle, BadRequest

_FRACTUNE = [sys.executable, "-m", "tuner_client.cli"]


@pytest.mark.parametrize(("units", "variant", "exact"), [(1, "cpu:1", True), (4, "cpu:4", True), (3, "cpu:4", False)])
def test_the_variant_is_the_exact_one_else_the_nearest_by_ratio(units: int, variant: str, *, exact: bool) -> None:
    choice = choose_variant(Bundle(bundle_bytes()), units)
    assert (choice.variant, choice.exact) == (variant, exact)


def test_two_cores_between_one_and_four_take_the_smaller_variant() -> None:
    choice = choose_variant(Bundle(bundle_bytes()), 2)
    assert choice.variant == "cpu:1"
    assert "tuned at 1 core(s), the nearest to the 2 here" in choice.reason


def test_a_bundle_without_tuned_variants_runs_untuned() -> None:
    bundle = Bundle(bundle_bytes(variants=[{"name": "untuned", "objects": ["lib0.o"]}]))
    assert choose_variant(bundle, 1).variant == "untuned"


def test_wrong_inputs_are_told_with_what_is_expected() -> None:
    model = object.__new__(Model)
    model.inputs = [InputSpec("data", "float32", (1, 3))]
    model.check_inputs({"data": np.zeros((1, 3), "float32")})
    for wrong in (
        {},
        {"data": np.zeros((1, 4), "float32")},
        {"data": np.zeros((1, 3), "float64")},
        {"data": np.zeros((1, 3), "float32"), "other": np.zeros(1)},
    ):
        with pytest.raises(BadRequest, match=r"the model takes data float32\[1, 3\]; given: "):
            model.check_inputs(wrong)


def test_arrays_are_read_by_name_and_objects_never(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=np.arange(3))
    assert read_inputs(tmp_path / "good.npz")["x"].tolist() == [0, 1, 2]
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    np.save(tmp_path / "single.npy", np.arange(3))
    (tmp_path / "text.npz").write_text("no arrays")
    for name in ("objects.npz", "single.npy", "text.npz", "missing.npz"):
        with pytest.raises(BadRequest, match=name):
            read_inputs(tmp_path / name)


def test_differences_are_absolute_and_relative() -> None:
    assert differences([np.array([1.0, 3.0])], [np.array([1.0, 4.0])]) == (1.0, 0.25)
    assert differences([np.array([np.nan])], [np.array([1.0])]) == (float("inf"), float("inf"))


def run_cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_FRACTUNE, "run", *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": {**DEVICE.to_json(), "isa": "zx81"}}, "is for the CPU 'zx81', this one is '"),
        ({"device": {**DEVICE.to_json(), "kind": "cuda"}}, "for a cuda device"),
        ({"format": 99}, "bundle format 99"),
    ],
)
def test_a_bundle_for_another_machine_is_refused(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    path = tmp_path / "m.fractune"
    path.write_bytes(bundle_bytes(**changes))
    ended = run_cli(str(path))
    assert ended.returncode == BadBundle.exit_code
    assert ended.stderr.startswith("fractune: m.fractune")
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_torn_bundles_and_wrong_shares_are_one_line(tmp_path: Path) -> None:
    torn = tmp_path / "torn.fractune"
    torn.write_bytes(bundle_bytes()[:-40])
    good = tmp_path / "good.fractune"
    good.write_bytes(bundle_bytes())
    too_many = f"cpu:{len(os.sched_getaffinity(0)) + 1}"
    for args, code, says in (
        ([str(torn)], 8, "torn.fractune: not a fractune bundle, or torn"),
        ([str(tmp_path / "none")], 8, "none: no such file"),
        ([str(good), "--share", too_many], 4, f"share '{too_many}' is larger"),
        ([str(good), "--share", "mps:25"], 2, "not a CPU share"),
        ([str(good), "--repeats", "1"], 2, "--repeats"),
    ):
        ended = run_cli(*args)
        assert (ended.returncode, ended.stderr.count("\n")) == (code, 1), ended.stderr
        assert says in ended.stderr
