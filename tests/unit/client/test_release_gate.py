"""The gate of the pipeline example: what passes, what does not, and how the report says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from fractune_core.errors import BadBundle
from tests.support.paths import REPOSITORY

SCRIPT = REPOSITORY / "examples" / "pipeline" / "release.py"


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a server that always has a bundle and models that are only names."""
    spec = importlib.util.spec_from_file_location("release", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "release", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_fetch", lambda _: (True, "made"))
    monkeypatch.setattr(module, "_same_outputs", lambda _: (True, "same"))
    return module


class Named:
    """Stands for a loaded model: the timings are made up, so nothing runs it."""

    def __init__(self, path: Path, share: str) -> None:
        self.choice = type("Choice", (), {"variant": share, "reason": f"{path.name} for a test"})()

    def random_inputs(self) -> dict[str, Any]:
        return {}


def run(release: ModuleType, tmp_path: Path) -> tuple[int, ET.Element]:
    report = tmp_path / "deep" / "report.xml"
    args = ["m.onnx", "--server", "x:1", "--shares", "cpu:1", "--serve", "cpu:1", "--last", "last.fractune"]
    code = release.main([*args, "--out", "new.fractune", "--junit", str(report)])
    return code, ET.parse(report).getroot()  # noqa: S314  - we wrote it


@pytest.mark.parametrize(
    ("slower", "code"),
    [(0.5, 0), (1.0, 0), (1.02, 0), (1.10, 1)],
    ids=["faster", "equal", "within tolerance", "slower"],
)
def test_slower_beyond_noise_and_tolerance_does_not_pass(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slower: float, code: int
) -> None:
    secs = [1.0, 1.001, 0.999, 1.0, 1.002]
    monkeypatch.setattr(release, "load", Named)
    monkeypatch.setattr(release, "time_in_turns", lambda *_, **__: {"new": [slower * s for s in secs], "last": secs})
    ended, suite = run(release, tmp_path)
    assert ended == code
    assert suite.get("failures") == str(code)
    assert [case.get("name") for case in suite] == [
        *("bundle", "outputs agree with the last release", "not slower than the last release at cpu:1"),
    ]


def test_an_error_is_a_failed_case_with_its_own_exit_code(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(*_: Any, **__: Any) -> None:
        raise BadBundle("last.fractune: torn")

    monkeypatch.setattr(release, "load", torn)
    ended, suite = run(release, tmp_path)
    assert ended == BadBundle.exit_code
    assert "last.fractune: torn" in str(ET.tostring(suite))
