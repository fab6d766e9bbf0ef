"""ONNX's own operator tests through the importer; docs/models.md agrees with their results and with the tables."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import onnx_operators
from benchmarks.onnx_operators import NAME
from benchmarks.support.importer_digest import importer_digest
from benchmarks.support.machine import RESULTS
from benchmarks.support.models_page import PAGE, models_page
from benchmarks.support.node_cases import FAILED, PASSED, REFUSED, Outcome, node_cases, run_case
from fractune_workers.children.importing.onnx_models.onnx_support import how

RESULT = RESULTS / f"{NAME}.json"
SLOW = "quantizelinear_axis"
QUICK = "matmulinteger convinteger qlinearconv celu isinf attention_24_fullymasked gelu_tanh"
FILES = "matmulinteger convinteger qlinearconv celu isinf attention gelu quantizelinear abs"
"""of ONNX's cases: all of them take seconds to make"""


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The cases of `FILES`, which are all that there are."""
    found = node_cases(*FILES.split())
    monkeypatch.setattr(onnx_operators, "node_cases", lambda: found)
    return found


def test_the_page_is_what_the_results_and_the_tables_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == models_page(RESULT)


@pytest.mark.parametrize("part", [*QUICK.split(), pytest.param(SLOW, marks=pytest.mark.long)])
def test_onnx_agrees(cases: dict[str, Any], part: str) -> None:
    outcomes = {name: run_case(case) for name, case in cases.items() if name.startswith(f"test_{part}")}
    assert PASSED in {outcome.status for outcome in outcomes.values()}
    assert {name: each.detail for name, each in outcomes.items() if each.status == FAILED} == {}
    for outcome in outcomes.values():
        assert "\n" not in outcome.detail
        assert outcome.status != REFUSED or outcome.detail


@pytest.mark.usefixtures("cases")
def test_a_part_of_the_cases_does_not_replace_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(onnx_operators, "run_named", lambda _, names: dict.fromkeys(names, Outcome(PASSED)))
    monkeypatch.setattr("benchmarks.support.machine.RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["onnx_operators", "--only", "test_abs"])
    onnx_operators.main()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--out", str(tmp_path / "part.json")])
    onnx_operators.main()
    assert set(json.loads((tmp_path / "part.json").read_text())["operators"]) == {"Abs"}


def result_file(folder: Path) -> Path:
    """A result with one refused case, by its words at that time."""
    file = folder / "result.json"
    operators = {"Abs": {"passed": 3, "refused": 1, "refusals": {"the words of then": "test_abs"}}}
    file.write_text(json.dumps({"counts": {"passed": 3, "refused": 1}, "operators": operators}))
    return file


def test_refusals_get_their_present_words_and_counts_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = result_file(tmp_path)
    monkeypatch.setattr(onnx_operators, "run_named", lambda _, names: dict.fromkeys(names, Outcome(REFUSED, "of now")))
    onnx_operators.update_refusals(file)
    found = json.loads(file.read_text())
    assert found["operators"]["Abs"] == {"passed": 3, "refused": 1, "refusals": {"of now": "test_abs"}}
    assert found["counts"] == {"passed": 3, "refused": 1}
    assert found["refusals_updated"]


def test_a_case_that_passes_now_needs_a_whole_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = result_file(tmp_path)
    before = file.read_text()
    monkeypatch.setattr(onnx_operators, "run_named", lambda _, names: dict.fromkeys(names, Outcome(PASSED)))
    with pytest.raises(SystemExit, match="test_abs has passed and was refused before; run all cases"):
        onnx_operators.update_refusals(file)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("Conv", "native"),
        ("If", "native"),
        ("QLinearConv", "decomposed"),
        ("HannWindow", "decomposed"),
        ("com.microsoft.MatMulNBits", "native"),
        ("com.microsoft.Attention", "decomposed"),
        ("StringConcat", "refused"),
    ],
)
def test_how_an_operator_is_imported(operator: str, kind: str) -> None:
    assert how(operator) == kind


def test_a_release_needs_the_counts_of_its_own_importer() -> None:
    import runpy

    wrong_counts = runpy.run_path(str(PAGE.parents[1] / "scripts" / "release_check"))["wrong_counts"]
    measured: dict[str, Any] = {"benchmark": NAME, "importer": importer_digest(), "counts": {"passed": 3, "refused": 1}}
    page = "ONNX's tests, 4 cases:\n3 passed, 1 refused."
    assert list(wrong_counts(json.dumps(measured), page)) == []
    (other_page,) = wrong_counts(json.dumps(measured), page.replace("3 passed", "4 passed"))
    assert other_page.startswith("docs/models.md: it does not say '3 passed, 1 refused'; run python -m benchmarks.")
    (other_importer,) = wrong_counts(json.dumps({**measured, "importer": "0" * 16}), page)
    assert other_importer.startswith("onnx_operators.json: it was run with another importer; run python")
