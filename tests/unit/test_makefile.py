"""`make test` and `make test-long` run both of their halves, and fail if one of them did."""

import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]

_PYTEST = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$*" in *{failing}*) exit 1;; esac
"""


@pytest.mark.parametrize("target", ["test", "test-long"])
@pytest.mark.parametrize(("failing", "code"), [("not alone", 2), ("tests/integration", 2), ("nothing", 0)])
def test_both_halves_run_and_one_failure_fails(target: str, failing: str, code: int, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(_PYTEST.format(failing=failing.replace(" ", '" "')))
    python.chmod(0o755)
    (tmp_path / ".setup-done").touch()
    made = subprocess.run(["make", "-s", target, f"VENV={tmp_path}"], cwd=_ROOT, capture_output=True, check=False)
    assert (made.returncode, len((python.parent / "calls").read_text().splitlines())) == (code, 2)


def test_every_test_that_measures_is_in_a_folder_of_the_second_half() -> None:
    (line,) = (each for each in (_ROOT / "Makefile").read_text().splitlines() if each.startswith("MEASURE :="))
    folders = [_ROOT / name for name in line.partition(":=")[2].split()]
    measuring = [file for file in (_ROOT / "tests").rglob("test_*.py") if "pytest.mark.alone" in file.read_text()]
    lost = [file for file in sorted(measuring) if not any(file.is_relative_to(folder) for folder in folders)]
    assert lost == [Path(__file__)], "this file names the mark and has none"
