"""tests/assets/breakages: it fits the code of today, and leaves out no promise of the docs."""

import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from tests.support.breakages import trial
from tests.support.breakages.pages import attempts, defended, named_tests
from tests.support.breakages.table import Breakage, breakages
from tests.support.breakages.trial import Checkout, Verdict
from tests.support.paths import REPOSITORY

TABLE = breakages()
WITHOUT = {
    "a certificate of another authority there": "gRPC checks by one option whether there is one and whose it is",
}
"""promises that no line of ours breaks alone, and why"""


def test_what_is_to_be_broken_is_there_once_and_so_is_its_test() -> None:
    for each in TABLE:
        assert each.before != each.after, each
        assert source_of(each.file).count(each.before) == 1, each
        assert f"def {each.test_name}(" in source_of(each.test_file), each


@cache
def source_of(file: str) -> str:
    return (REPOSITORY / file).read_text(encoding="utf-8")


def test_a_broken_module_compiles_and_knows_its_names(tmp_path: Path) -> None:
    """Else its test does not begin, or fails whatever the promise is. A file is broken in all places at once, but for
    those that overlap.
    """
    rows = [each for each in TABLE if each.file.endswith(".py")]
    while rows:
        broken, later = dict[str, str](), list[Breakage]()
        for each in rows:
            text = broken.setdefault(each.file, source_of(each.file))
            if each.before in text:
                broken[each.file] = text.replace(each.before, each.after)
            else:
                later.append(each)
        assert len(later) < len(rows), later
        for file, text in broken.items():
            path = tmp_path / f"{len(rows)}" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        rows = later
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_no_two_have_the_same_words() -> None:
    assert len({each.promise for each in TABLE}) == len(TABLE)


def test_every_test_that_the_page_on_reliability_names_has_seen_its_promise_broken() -> None:
    tests = {(each.test_file, each.test_name) for each in TABLE}
    files = {file for file, _ in tests}
    assert [
        (file, name) for file, name in named_tests() if (file, name) not in tests and (name or file not in files)
    ] == []


def test_every_attempt_of_a_stranger_succeeds_where_what_stops_it_is_broken() -> None:
    promises = {each.promise for each in TABLE} | WITHOUT.keys()
    assert len(attempts()) > 15
    assert [each for each in attempts() if each not in promises] == []


def test_whatever_is_said_to_be_defended_has_been_broken() -> None:
    assert len(defended()) > 5
    about = {each.promise.partition(":")[0] for each in TABLE}
    assert [each for each in defended() if each not in about] == []


SUBJECT = "def is_right() -> bool:\n    return True\n"
TEST = "from subject import is_right\n\n\ndef test_it() -> None:\n    assert is_right()\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    origin, copy = tmp_path / "origin", tmp_path / "copy"
    origin.mkdir()
    subprocess.run(("git", "init", "-q"), cwd=origin, check=True)
    (origin / "subject.py").write_text(SUBJECT)
    (origin / "test_subject.py").write_text(TEST)
    monkeypatch.setattr(trial, "REPOSITORY", origin)
    try:
        with trial._task_limit(30):
            pass
    except OSError as error:
        pytest.skip(str(error))
    return Checkout(copy)


@pytest.mark.parametrize(
    ("after", "test", "verdict"),
    [
        ("return False", "test_subject.py::test_it", Verdict.CAUGHT),
        ("return 1", "test_subject.py::test_it", Verdict.SURVIVED),
        ("while True: pass", "test_subject.py::test_it", Verdict.HUNG),
        ("return (", "test_subject.py::test_it", Verdict.NOT_TESTED),
    ],
)
def test_what_becomes_of_a_broken_promise(
    checkout: Checkout, tmp_path: Path, after: str, test: str, verdict: Verdict
) -> None:
    broken = Breakage("it is right", "subject.py", "return True", after, test)
    assert checkout.try_broken(broken, limit_s=1 if verdict is Verdict.HUNG else 60).verdict is verdict
    assert (tmp_path / "copy" / "subject.py").read_text() == SUBJECT


def test_a_test_starts_only_so_many_processes(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broken sandbox may be what kept them few. The last ones would outlive the test by a minute."""
    monkeypatch.setattr(trial, "_MOST_TASKS", 30)
    starts = "import os, time; [os.fork() or (time.sleep(60), os._exit(0)) for _ in range(100)]"
    broken = Breakage("it is right", "subject.py", "return True", starts, "test_subject.py::test_it")
    began_s = time.monotonic()
    outcome = checkout.try_broken(broken, limit_s=60)
    assert (outcome.verdict, "Resource temporarily unavailable" in outcome.said) == (Verdict.CAUGHT, True)
    assert time.monotonic() - began_s < 60
