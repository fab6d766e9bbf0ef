"""A share that cannot be verified now is tried again, then named and left out; the others are tuned."""

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fractune.cli import main
from fractune.local import processes
from fractune.local.processes import Part
from fractune.local.stack import Stack
from fractune_core.files.bundles import Bundle
from tests.support.processes.cli_process import write_model

CAUSE = "'cpu:500m' cannot be verified: busy processes got 407m; other programs use these CPUs"
REFUSED = f"import sys; sys.stderr.write({f'fractune: --share {CAUSE}'!r}); sys.exit(4)"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The starts of the worker for cpu:500m, which other programs always disturb."""
    monkeypatch.setattr(processes, "PATIENCE_S", 2.0)
    monkeypatch.setattr(processes, "PAUSE_S", 0.5)
    plain, found = Stack._worker_part, list[str]()

    def worker_part(stack: Stack, label: str, role: str, cores: Sequence[int], args: Sequence[str] = ()) -> Part:
        part = plain(stack, label, role, cores, args)

        def command() -> list[str]:
            found.append(" ".join(part.command()))
            return [sys.executable, "-c", REFUSED]

        return replace(part, command=command) if "cpu:500m" in args else part

    monkeypatch.setattr(Stack, "_worker_part", worker_part)
    return found


def tune(folder: Path, shares: str, *more: str) -> int:
    model, where = write_model(folder / "m.onnx"), ("--state", str(folder / "state"), "--out-dir", str(folder))
    options = ("--shares", shares, "--trials", "0", "--only", "conv2d", "--compete", "none", *where, *more)
    return main(["tune", str(model), *options])


@pytest.mark.long
def test_the_other_shares_are_tuned_and_the_result_and_the_bundle_name_the_skipped_one(
    tmp_path: Path, starts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, "cpu:1,cpu:500m", "--json") == 13
    said = capfd.readouterr()
    assert f"fractune: cpu:500m is skipped: {CAUSE}\n" in said.err
    result = json.loads(said.out.splitlines()[-1])
    assert result["skipped_shares"] == {"cpu:500m": CAUSE}
    assert [each["share"] for each in result["shares"]] == ["cpu:1"]
    with contextlib.closing(Bundle(tmp_path / "m.fractune")) as bundle:
        assert bundle.manifest["skipped_shares"] == {"cpu:500m": CAUSE}
    assert len(starts) > 2


def test_without_any_share_nothing_is_tuned(
    tmp_path: Path, starts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, "cpu:500m") == 4
    assert capfd.readouterr().err == f"note: {CAUSE}; trying again for 2 s\nfractune: {CAUSE}\n"
    assert len(starts) > 2
    assert not (tmp_path / "m.fractune").exists()
