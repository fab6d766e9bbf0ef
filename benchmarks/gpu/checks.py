"""The part `tests`: pytest on the tests that are marked `gpu`."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from benchmarks.gpu.command import REPOSITORY, python
from benchmarks.gpu.part import Finding, PartFailed, Slice

_TESTS = REPOSITORY / "tests"
_FOLDERS = ("unit", "processes", "integration")
_LONGEST_TEST_S = 240


def run(given: Slice) -> Finding:
    cases: dict[str, tuple[str, str]] = {}
    faults = []
    for path in marked_files(_TESTS):
        name = str(path.relative_to(REPOSITORY))
        try:
            cases |= {f"{name}::{case}": found for case, found in _cases(given, path).items()}
        except PartFailed as error:  # the time is over, or the file cannot be imported: the others count all the same
            faults.append(f"{name}: {error}")
    counts = Counter(outcome for outcome, _ in cases.values())
    line = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    faults += [f"{name}: {why}" for name, (outcome, why) in cases.items() if outcome == "failed"]
    faults += [] if counts["passed"] else ["no test ran to its end"]
    return Finding(line, {"cases": cases}, tuple(faults))


class _SomeFailed(Exception):
    """Of a file's tests: they are run again the next time."""

    def __init__(self, cases: dict[str, tuple[str, str]]) -> None:
        super().__init__(cases)
        self.cases = cases


def _cases(given: Slice, path: Path) -> dict[str, tuple[str, str]]:
    """As `_run_file`; once for a file with passing tests."""

    def good() -> dict[str, tuple[str, str]]:
        cases = _run_file(given, path)
        if any(outcome == "failed" for outcome, _ in cases.values()):
            raise _SomeFailed(cases)
        return cases

    try:
        return {case: (outcome, why) for case, (outcome, why) in given.once(_own_name(path), good).items()}
    except _SomeFailed as error:
        return error.cases


def _run_file(given: Slice, path: Path) -> dict[str, tuple[str, str]]:
    """Outcomes of the file's tests by name. Raises PartFailed when there are none."""
    report = given.private / f"{_own_name(path)}.xml"
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", f"--timeout={_LONGEST_TEST_S}"]
    ended = python(given, "-m", "pytest", *options, str(path))
    if not report.exists():
        raise PartFailed(f"pytest ended with code {ended.code}: {' | '.join(ended.lines[-8:])} {ended.last_words}")
    return read_report(report)


def _own_name(path: Path) -> str:
    """Of a test file: two may be called the same in different folders."""
    return "-".join(path.relative_to(REPOSITORY).with_suffix("").parts)


def marked_files(tests: Path) -> list[Path]:
    """The test files in which something carries the marker `gpu`; those that take least time first."""
    marked = (path for path in tests.rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8"))
    return sorted(marked, key=lambda path: (_FOLDERS.index(path.relative_to(tests).parts[0]), path))


def read_report(path: Path) -> dict[str, tuple[str, str]]:
    """By test: `passed`, `failed` or `skipped`, and why."""
    found = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314  our own pytest has just written it
        outcome, why = "passed", ""
        for tag, meaning in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
            entry = case.find(tag)
            if entry is not None:
                outcome, why = meaning, " ".join((entry.get("message") or "").split())[:300]
        found[str(case.get("name"))] = (outcome, why)
    return found
