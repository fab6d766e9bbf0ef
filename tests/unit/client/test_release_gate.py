"""The gate of the pipeline example: what passes, what does not, and how the report says so."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import fractune
from fractune.errors import BadBundle
from fractune_core.analysis.match import How
from fractune_core.analysis.slowdown_ci import slowdown
from fractune_runtime.choosing import VariantChoice
from tests.support.paths import REPOSITORY

SCRIPT = REPOSITORY / "examples" / "pipeline" / "release.py"


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a server that always has a bundle."""
    spec = importlib.util.spec_from_file_location("release", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "release", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_fetch", lambda _: (True, "made"))
    return module


def comparison(slower: float, difference: float = 0.0) -> fractune.Comparison:
    """What `fractune.compare` finds when the new bundle takes `slower` times as long."""
    secs = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998]
    new = [slower * s for s in secs]
    choice = VariantChoice("cpu:1", How.EXACT, 0.0, "for a test", 1)
    lost = slowdown(new, secs, interleaved=True)
    timed = lost, tuple(new), tuple(secs)
    return fractune.Comparison(*timed, *timed, difference, difference, choice, choice)


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
    monkeypatch.setattr(fractune, "compare", lambda *_, **__: comparison(slower))
    ended, suite = run(release, tmp_path)
    assert ended == code
    assert suite.get("failures") == str(code)
    assert [case.get("name") for case in suite] == [
        *("bundle", "outputs agree with the last release", "not slower than the last release at cpu:1"),
    ]


def test_other_outputs_do_not_pass(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fractune, "compare", lambda *_, **__: comparison(0.5, difference=0.01))
    ended, suite = run(release, tmp_path)
    assert ended == 1
    assert "largest difference 1.0e-02" in str(ET.tostring(suite))


def test_an_error_is_a_failed_case_with_its_own_exit_code(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(*_: Any, **__: Any) -> None:
        raise BadBundle("last.fractune: torn")

    monkeypatch.setattr(fractune, "compare", torn)
    ended, suite = run(release, tmp_path)
    assert ended == BadBundle.exit_code
    assert "last.fractune: torn" in str(ET.tostring(suite))


def test_it_stands_on_the_public_names_alone() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name.startswith("fractune")} == {"fractune", "fractune.errors"}
