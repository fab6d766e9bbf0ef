"""`fractune run`, and the inputs and comparisons that it is made of."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from fractune.cli import main
from fractune.cli.commands.models.run import array_names, read_inputs, write_arrays
from fractune.comparing import interleaved
from fractune.features.join import join
from fractune_core.agreement import differences
from fractune_core.errors import BadBundle, BadRequest, FractuneError
from fractune_runtime.sessions import OnnxRuntimeSession
from fractune_runtime.tvm_runtime.tensors import TensorSpec
from tests.support.client_samples import DEVICE, bundle_bytes
from tests.support.real_bundle import Small
from tests.unit.client.comparing.test_interleaved import Clock

Run = Callable[..., tuple[int, str, str]]


def test_differences_are_absolute_and_relative() -> None:
    assert differences([np.array([1.0, 3.0])], [np.array([1.0, 4.0])]) == (1.0, 0.25)
    assert differences([np.array([np.nan])], [np.array([1.0])]) == (float("inf"), float("inf"))


def test_outputs_of_lost_denormals_are_equal() -> None:
    _, relative = differences([np.zeros(2, np.float32)], [np.full(2, 1e-38, np.float32)])
    assert relative <= 1e-8
    assert differences([np.zeros(2)], [np.full(2, 1e-38)])[1] == 1  # float64 has normal numbers there
    assert differences([np.zeros(2, np.float32)], [np.full(2, 1e-29, np.float32)])[1] == 1


@pytest.fixture
def run(affinity: set[int], capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """`fractune run` in this process: exit code and outputs. Its cores and variables are taken back."""

    def run(*args: str) -> tuple[int, str, str]:
        os.sched_setaffinity(0, affinity)
        return main(["run", *args]), *capfd.readouterr()

    with patch.dict(os.environ):
        yield run


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": {**DEVICE.to_json(), "isa": "zx81"}}, "is for the CPU 'zx81', this one is '"),
        (
            {"device": {**DEVICE.to_json(), "kind": "abacus"}},
            "for a 'abacus' device, which this version does not support",
        ),
        ({"format": 99}, "newer format (99"),
        ({"outputs": None}, "'outputs' is missing"),
    ],
)
def test_a_bundle_that_does_not_run_here_is_refused(
    run: Run, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = tmp_path / "m.fractune"
    path.write_bytes(bundle_bytes(**changes))
    code, _, told = run(str(path))
    assert code == BadBundle.exit_code
    assert told.startswith("fractune: m.fractune")
    assert says in told
    assert told.count("\n") == 1


def test_torn_bundles_and_wrong_shares_are_one_line(run: Run, tmp_path: Path) -> None:
    torn = tmp_path / "torn.fractune"
    torn.write_bytes(bundle_bytes()[:-40])
    good = tmp_path / "good.fractune"
    good.write_bytes(bundle_bytes())
    too_many = f"cpu:{len(os.sched_getaffinity(0)) + 1}"
    key = tmp_path / "key.pem"
    key.write_text("rubbish")
    for args, code, says in (
        ([str(torn)], 8, "torn.fractune: 'manifest.json' does not match its digest, or the file is torn"),
        ([str(tmp_path / "none")], 8, "none: no such file"),
        ([str(good), "--share", too_many], 4, f"share '{too_many}' is larger"),
        ([str(good), "--share", "mps:25"], 2, "is of a GPU, and the bundle is for a CPU"),
        ([str(good), "--repeats", "1"], 2, "--repeats"),
        ([str(good), "--compare", "onnxruntime"], 2, "--compare and --model go together"),
        ([str(good), "--public-key", str(tmp_path / "none")], 2, "--public-key"),
        ([str(good), "--public-key", str(key)], 2, "not a valid public key"),
    ):
        ended, _, told = run(*args)
        assert (ended, told.count("\n")) == (code, 1), told
        assert says in told


def test_the_report_in_words_and_as_json(
    run: Run, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words by a process of its own, which needs no compiler."""
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4, 16, 16), "float32"))
    args = [str(small.bundle), "--share", "cpu:1", "--repeats", "3", "--inputs", str(tmp_path / "in.npz")]
    command = [sys.executable, "-m", "fractune.cli", "run", *args, "--save-outputs", str(tmp_path / "out.npz")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    said = " ".join(ended.stdout.split())
    for says in (
        "variant: cpu:1 (it was tuned for 1 core",
        "on 1 core,",
        "speed-up:",
        "share: cpu:1 as requested, of ",
        "s) paced (",  # in us, or in ms on a busy machine
        "paced: each request comes 20 ms after the previous answer ",
    ):
        assert says in said
    assert np.load(tmp_path / "out.npz")["y"].shape == (1, 10)
    monkeypatch.setattr("fractune.cli.commands.models.run._SHORT_S", 10.0)  # the model was compiled in a hurry
    report: dict[str, Any] = json.loads(run(*args, "--json")[1])
    assert (report["variant"], report["how"], report["exact"], report["units"]) == ("cpu:1", "exact", True, 1)
    assert (report["regret"], report["threads"]) == (None, 1)
    assert report["max_rel_difference"] == 0.0
    assert report["outputs"] == [{"name": "y", "dtype": "float32", "shape": [1, 10]}]
    for times in ("tuned_run_secs", "tuned_paced_run_secs", "untuned_run_secs", "untuned_paced_run_secs"):
        assert len(report[times]) == 3
    assert 0 < report["bound_s"] < 10 * report["call_s"] < 100 * report["bound_s"]
    assert report["tuned_paced_s"] == sorted(report["tuned_paced_run_secs"])[1]


def test_onnx_runtime_compared(run: Run, small: Small) -> None:
    args = [str(small.bundle), "--share", "cpu:1", "--repeats", "3", "--compare", "onnxruntime", "--model"]
    code, said, errors = run(*args, str(small.model))
    assert (code, errors) == (0, "")
    assert "peer: ONNX Runtime 1." in said
    assert "the outputs agree" in said
    peer = json.loads(run(*args, str(small.model), "--json")[1])["beside"]
    assert peer["outputs_agree"] is True
    assert len(peer["run_secs"]) == len(peer["paced_run_secs"]) == 3
    code, _, errors = run(*args, str(small.bundle))
    assert code == BadRequest.exit_code
    assert "not the file that small.fractune was made from ('small.onnx')" in errors
    assert "cannot be read" in run(*args, "none.onnx")[2]


@pytest.mark.parametrize(
    ("units", "unit", "threads", "quota_m", "says"),
    [
        (2, "core", 1, None, " one thread, on 2 cores"),
        (2, "core", 2, None, " on 2 cores"),
        (4, "core", 2, None, " 2 threads, on 4 cores"),
        (1, "core", 1, None, " on 1 core"),
        (66, "sm", 1, None, " on 66 SMs"),
        (2, "core", 2, 1500, " 2 threads under a limit of 1500m"),
    ],
)
def test_what_a_model_ran_on_is_named_below_the_times(
    capsys: pytest.CaptureFixture[str], units: int, unit: str, threads: int, quota_m: int | None, says: str
) -> None:
    from fractune.cli.commands.models.run import _print

    times = {f"untuned_{name}run_secs": [1e-3] * 3 for name in ("", "paced_")}
    report = {
        "variant": "untuned",
        "reason": "",
        "share": "",
        "warning": "",
        "tuned_s": 1e-3,
        "max_abs_difference": 0.0,
        "unproved": "",
    }
    report |= {"untuned_s": 1e-3, "untuned_paced_s": 1e-3, "max_rel_difference": 0.0}
    report |= {"units": units, "unit": unit, "threads": threads, "quota_m": quota_m}
    _print({**report, **times}, "random inputs")
    assert f"          {says}, random inputs; paced: " in capsys.readouterr().out


def test_outputs_that_say_nothing_do_not_agree(run: Run, small: Small, tmp_path: Path) -> None:
    """NaN in, NaN out, in every runtime."""
    np.savez(tmp_path / "nan.npz", x=np.full((1, 4, 16, 16), np.nan, np.float32))
    args = [str(small.bundle), "--share", "cpu:1", "--repeats", "3", "--inputs", str(tmp_path / "nan.npz")]
    against = ["--compare", "onnxruntime", "--model", str(small.model)]
    for more in ([], against):
        code, said, errors = run(*args, *more)
        assert (code, errors) == (0, "")
        assert "NOT CHECKED: they are NaN or infinite; give inputs of your own (--inputs)" in said
        assert "agree" not in said
    assert json.loads(run(*args, *against, "--json")[1])["unproved"] == "NaN or infinite"


def test_who_is_faster_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    from fractune.cli.commands.models.run import _print_verdict

    times = {"run_secs": [1e-3] * 9, "paced_run_secs": [3e-3] * 9}
    peer = {**times, "exact": None, "version": "1.0", "max_rel_difference": 0.5, "own_rel_difference": 0.0}
    _print_verdict({**peer, "outputs_agree": False}, [2e-3] * 9, [2e-3] * 9)
    said = capsys.readouterr().out
    assert "ONNX Runtime is faster in a loop, 2.00x (2.00 .. 2.00); the bundle is faster paced, 1.50x" in said
    assert "DO NOT AGREE" in said
    noisy = [1e-3 * (1 + 0.1 * (-1) ** number) for number in range(9)]
    _print_verdict({**peer, "outputs_agree": True}, noisy, [2e-3] * 9)
    said = capsys.readouterr().out
    assert "a tie in a loop, 0.91x (0.91 .. 1.11); the bundle is faster paced, 1.50x" in said
    assert "exact" not in said
    exact = {"exact": times, "own_rel_difference": 0.25}
    _print_verdict({**peer, **exact, "outputs_agree": True}, [2e-3] * 9, [2e-3] * 9)
    said = capsys.readouterr().out
    assert "exact:     ONNX Runtime is faster in a loop, 2.00x (2.00 .. 2.00); the bundle is faster paced" in said
    assert "exact: the same with exact products; the outputs are compared with its own" in said
    settings = "session.x64quantprecision=1, session.qdq_matmulnbits_accuracy_level=1"
    assert f"({settings}; accuracy_level=4 rounds in both)" in said
    assert "right outputs lie up to 2.50e-01 apart: those of exact sessions" in said


def test_without_onnx_runtime_the_way_to_it_is_told(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FractuneError, match=r"install 'fractune\[onnxruntime\]'"):
        OnnxRuntimeSession(small.model, 1)


def test_a_share_that_was_not_measured_gets_a_hint() -> None:
    from fractune.cli.commands.models.run import _hints

    (hint,) = _hints({"tuned_shares": ["cpu:1", "cpu:2"], "tuned_s": 1.0})
    assert "--share cpu:1 runs the variant that was tuned there; --allow-unmeasured runs it here" in hint


def shown(call_s: float | None, bound_s: float | None) -> list[str]:
    from fractune.cli.commands.models.run import _hints

    return _hints({"call_s": call_s, "bound_s": bound_s, "tuned_s": 1.0})


def test_the_overhead_of_a_call_is_shown_where_it_is_a_large_part() -> None:
    assert shown(6e-6, 3e-6) == [
        "overhead:  3.00 us of a call (6.00 us) are copies and checks of arrays, which model.bind saves"
    ]
    assert shown(6e-6, 5e-6) == shown(5e-6, 6e-6) == shown(None, None) == []


def test_the_overhead_is_that_of_this_run_beside_bound_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from fractune.cli.commands.models.run import _single_calls_s

    clock = Clock()
    monkeypatch.setattr(interleaved, "time", clock)
    call, disturbed, memory = clock.calls("run", 5e-6), clock.calls("run", 1.0), np.zeros(3)

    def model(unit: str = "core", shape: tuple[int | None, ...] = (1,)) -> Any:
        return SimpleNamespace(
            share=SimpleNamespace(unit=unit),
            outputs=[SimpleNamespace(shape=shape)],
            run=lambda _inputs: (disturbed if clock.seen.count("run") % 3 == 0 else call)(),
            bind=lambda: SimpleNamespace(inputs={"x": memory}, run=clock.calls("bound", 3e-6)),
        )

    inputs = {"x": np.ones(3)}
    found = _single_calls_s(model(), inputs, None, 5e-6)
    assert found == {"call_s": pytest.approx(5e-6), "bound_s": pytest.approx(3e-6)}
    assert memory.tolist() == [1.0] * 3
    assert clock.seen[:4] == ["run", "bound"] * 2
    assert _single_calls_s(model(), inputs, None, 5e-3) == {}
    assert _single_calls_s(model(), inputs, 1, 5e-6) == {}
    assert _single_calls_s(model(unit="sm"), inputs, None, 5e-6) == {}
    assert _single_calls_s(model(shape=(None,)), inputs, None, 5e-6) == {}


def test_a_slow_untuned_variant_is_timed_once(run: Run, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaved, "BRIEF_S", 1e-9)
    args = [str(small.bundle), "--share", "cpu:1", "--repeats", "3"]
    code, printed, _ = run(*args)
    assert code == 0
    report = json.loads(run(*args, "--json")[1])
    assert [len(report[f"{name}_run_secs"]) for name in ("tuned", "untuned")] == [3, 1]
    (untuned,) = (line for line in printed.splitlines() if line.startswith("untuned:"))
    (gain,) = (line for line in printed.splitlines() if line.startswith("speed-up:"))
    assert untuned.count("(one timing)") == gain.count("x (one timing)") == 2


def test_large_ratios_have_no_decimals_and_few_timings_no_interval() -> None:
    from fractune.cli.commands.models.run import _gain_text

    assert _gain_text([6.0], [0.0252] * 7) == "238x (one timing)"
    assert _gain_text([6.0] * 9, [0.0252] * 9) == "238x (238 .. 238)"
    assert _gain_text([6.0] * 3, [4.0] * 3) == "1.50x"


def test_a_profile_names_the_calls_inside_the_model(run: Run, small: Small) -> None:
    code, out, _ = run(str(small.bundle), "--repeats", "3", "--profile", "--allow-unmeasured")
    assert code == 0
    assert "inside the model: " in out
    assert "timing the calls lengthened the model by" in out.splitlines()[-1]
    code, out, _ = run(str(small.bundle), "--repeats", "3", "--profile", "--allow-unmeasured", "--json")
    rows = json.loads(out)["inside"]
    assert code == 0
    assert rows[-1]["name"] == "between calls"
    assert any(row["kind"] != "other call" for row in rows)


def test_a_model_in_parts_has_no_profile(run: Run, in_parts: Small) -> None:
    code, _, err = run(str(in_parts.bundle), "--repeats", "3", "--profile", "--allow-unmeasured")
    assert code != 0
    assert "--profile takes a bundle of one shape that is not in parts" in err


def test_sizes_by_name_choose_the_shape(
    run: Run, encoders: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    joined = tmp_path / "j.fractune"
    join([encoders / f"encoder-{size}.fractune" for size in ("1x8", "1x16", "2x16")], out=joined)
    for sizes, shape in ((("length=8",), [1, 8]), (("batch=1",), [1, 16]), (("batch=2", "ids:1=16"), [2, 16])):
        code, out, _ = run(str(joined), "--repeats", "3", "--json", *(f"--size={each}" for each in sizes))
        assert code == 0
        assert json.loads(out)["outputs"][0]["shape"][:2] == shape
    for sizes, says in (
        (("length=9",), "the bundle is for length 8; length 16, and not for length 9; give sizes that it has"),
        (("batch=2", "length=8"), "and not for batch 2 length 8"),
        (("width=8",), "no open axis is named 'width'; the model leaves 'batch', 'length' open"),
    ):
        given = [f"--size={each}" for each in sizes]
        competed = main(["compete", str(joined), "--model", str(encoders / "encoder.onnx"), *given])
        assert (competed, capfd.readouterr().err.count(says)) == (BadRequest.exit_code, 1)
        code, _, told = run(str(joined), *given)
        assert (code, told.count("\n")) == (BadRequest.exit_code, 1)
        assert says in told


def test_arrays_are_read_by_name_and_objects_never(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=np.arange(3))
    assert read_inputs(tmp_path / "good.npz")["x"].tolist() == [0, 1, 2]
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    np.save(tmp_path / "single.npy", np.arange(3))
    (tmp_path / "text.npz").write_text("no arrays")
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "damaged.npz").write_bytes(whole[:-200] + b"x" + whole[-199:])
    for name in ("objects.npz", "single.npy", "text.npz", "torn.npz", "damaged.npz", "missing.npz"):
        with pytest.raises(BadRequest, match=f"{name}: .*numpy.savez"):
            read_inputs(tmp_path / name)


def named(*names: str) -> list[str]:
    return array_names([TensorSpec(name, "float32", (2,)) for name in names])


@pytest.mark.parametrize("names", [("y",), ("file", "output1", "allow_pickle"), ("head/Add_output_0", "a/b:0", "é.1")])
def test_arrays_are_written_by_the_names_of_the_outputs(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    arrays = {name: np.full(2, number, "float32") for number, name in enumerate(named(*names))}
    with path.open("wb") as file:
        write_arrays(file, arrays)
    read = read_inputs(path)
    assert list(read) == list(names)
    assert [array.tolist() for array in read.values()] == [[number] * 2 for number in range(len(names))]


def test_a_name_that_leads_elsewhere_leaves_all_outputs_their_numbers() -> None:
    elsewhere = ("", "/", "/work/x", "../x", "a/../../x", "//x", "a//b", ".", "a\0b", "a\nb", "..\\x", "x" * 201)
    for name in (*elsewhere, "y.npy", "a/"):
        assert named("y", name) == ["output0", "output1"]
