"""Packs: what they hold, and the wheels in them."""

import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fractune.features.packs import carry_wheels, past_trials, write_smaller
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.fleet.messages import PastTrial
from fractune_core.records import TRIAL_POLICY, Status, TuningRecord
from tests.support.samples import validation


def wheel(folder: Path, name: str, *files: str) -> Path:
    """A wheel with these files and a list of them."""
    record = f"{name}-1.0.dist-info/RECORD"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for file in files:
            made.writestr(file, file)
        made.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        made.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(record, "".join(f"{file},,\n" for file in (*files, record)))
    return path


@pytest.mark.parametrize(
    ("name", "left", "dropped"),
    [
        (
            "apache_tvm",
            ["tvm/__init__.py", "tvm/lib/libtvm_runtime.so", "tvm/lib/libtvm_runtime_cuda.so"],
            ["tvm/lib/libtvm_compiler.so", "tvm/relax/op.py", "tvm/3rdparty/cutlass/a.hpp"],
        ),
        ("other", ["other/a.py", "other/lib/a.so", "other/latest.py"], ["other/tests/a.py", "other/include/a.h"]),
    ],
)
def test_a_wheel_keeps_what_a_measuring_host_reads(
    tmp_path: Path, name: str, left: list[str], dropped: list[str]
) -> None:
    out = tmp_path / "out.whl"
    write_smaller(wheel(tmp_path, name, *left, *dropped), out)
    with zipfile.ZipFile(out) as made:
        assert made.testzip() is None
        assert [each for each in made.namelist() if ".dist-info" not in each] == left
        listed = made.read(f"{name}-1.0.dist-info/RECORD").decode().splitlines()
    assert listed == [f"{each},," for each in (*left, f"{name}-1.0.dist-info/RECORD")]


def test_what_cannot_be_had_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(FractuneError, match=r"^pip could not fetch the wheels: ERROR: No matching distribution .*$"):
        carry_wheels(tmp_path / "none", "cpu", f"3.{sys.version_info.minor}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(BadRequest, match="is not empty; name a new folder"):
        carry_wheels(tmp_path / "full", "cpu")
    for version in ("3", "2.7", "3.12 --index-url x"):
        with pytest.raises(BadRequest, match="is not a version of Python"):
            carry_wheels(tmp_path / "none", "cpu", version)


def trial(name: str, share: str, status: Status = Status.OK, secs: float = 1.0, isa: str = "znver4") -> TuningRecord:
    made = validation("", 1, 1.0)
    device = replace(made.device, isa=isa)
    run_secs = (secs,) * 3 if status is Status.OK else ()
    return replace(
        made,
        candidate_id=name,
        trace=f"[{name}]",
        share=share,
        status=status,
        run_secs=run_secs,
        device=device,
        policy=TRIAL_POLICY,
    )


def test_trials_at_all_shares_of_the_device_with_most_of_them_count() -> None:
    records = [
        trial("1", "cpu:1", secs=2.0),
        trial("1", "cpu:2", secs=1.0),
        trial("2", "cpu:1", Status.CRASHED),
        trial("2", "cpu:2", Status.CRASHED),
        trial("3", "cpu:1"),  # not measured at cpu:2
        trial("4", "cpu:1", Status.BUILD_FAILED),
        trial("5", "cpu:4", isa="haswell"),
    ]
    assert past_trials(records) == [
        PastTrial("1", "[1]", {"cpu:1": 2.0, "cpu:2": 1.0}),
        PastTrial("2", "[2]", {"cpu:1": 0.0, "cpu:2": 0.0}),
    ]
    assert past_trials([]) == []
