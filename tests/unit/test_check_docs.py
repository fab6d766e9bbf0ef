"""The checks of Markdown: width of lines, English of sentences, and a baseline that only shrinks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_docs"
LONG = "word " * 24 + "end"
LONG_SENTENCE = "One\n" + "word\n" * 29 + "end."
LINK = f"[{'a title ' * 12}](docs/page.md)"


def check(page: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    page.write_text(text, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(page), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check_allowing(faults: dict[str, int], page: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    baseline = page.with_name("baseline.json")
    baseline.write_text(json.dumps({str(page): faults}), encoding="utf-8")
    return check(page, text, "--baseline", str(baseline), *options)


@pytest.mark.parametrize("line", [LONG, f"- {LONG}", f"> {LONG}", f"    {LONG}", f"see {LINK}"])
def test_a_long_line_is_named(tmp_path: Path, line: str) -> None:
    page = tmp_path / "page.md"
    ended = check(page, f"A short line\n{line}\n")
    assert ended.stdout == f"{page}:2: {len(line)} characters, at most 100\n"
    assert ended.returncode == 1


@pytest.mark.parametrize(
    "text",
    [
        f"| {LONG} | cell |",
        f"```\n{LONG}\n```",
        f"Text:\n\n    {LONG}\n    {LONG}",
        f"- {LINK},",
        "https://example.com/" + "a" * 100,
        "a" * 100,
    ],
)
def test_what_cannot_be_broken_may_be_long(tmp_path: Path, text: str) -> None:
    ended = check(tmp_path / "page.md", text + "\n")
    assert (ended.stdout, ended.returncode) == ("", 0)


def test_lines_after_code_are_prose_again(tmp_path: Path) -> None:
    ended = check(tmp_path / "page.md", f"```\ncode\n```\n{LONG}\n\n    code\n\n{LONG}\n")
    assert [line.split(":")[1] for line in ended.stdout.splitlines()] == ["4", "8"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (LONG_SENTENCE, "31 words, at most 30: "),
        (f"- An entry\n- {LONG_SENTENCE}", "31 words, at most 30: "),
        ("What is kept is small.", "a clause as subject: "),
        ("It is small; what is kept stays.", "a clause as subject: "),
        ("*Who leaves at once* misses the end.", "a clause as subject: "),
        ("Two parts, of which one is\nkept.", '"of which": '),
        ("Two parts, of\nwhich one is kept.", '"of which": '),
        ("| cell | Nobody reads it |", '"nobody": '),
        ("# Mended on the way", '"mend": '),
        ("The user is told so.", '"told": '),
    ],
)
def test_a_sentence_that_must_be_decoded_is_named(tmp_path: Path, text: str, fault: str) -> None:
    page = tmp_path / "page.md"
    ended = check(page, f"First.\n\n{text}\n")
    line = 4 if text.startswith("- An entry") else 3
    assert ended.stdout.startswith(f"{page}:{line}: {fault}")
    assert (len(ended.stdout.splitlines()), ended.returncode) == (1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "One " + "word " * 14 + "end.\nAnother " + "word " * 14 + "end.",
        "One `" + "word\n" * 40 + "` end.",
        f"[One](https://example.com/{'a' * 90})\n" + "word\n" * 26 + "end.",
        f"```\n{LONG_SENTENCE}\nWhat is told is code.\n```",
        "- one\n- " + "\n- ".join(["a word and a word"] * 10),
        "| what | then |",
        "# What is measured",
        "**What is measured.** Each candidate.",
        "What is measured?",
        "`nobody` is a name; amendments and untold stories are other words.",
    ],
)
def test_plain_sentences_and_code_pass(tmp_path: Path, text: str) -> None:
    ended = check(tmp_path / "page.md", text + "\n")
    assert (ended.stdout, ended.returncode) == ("", 0)


def test_faults_within_the_baseline_pass_and_new_ones_fail(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    passed = check_allowing({"told": 1}, page, "The user is told so.\n")
    assert (passed.stdout, passed.returncode) == ("", 0)
    failed = check_allowing({"told": 1}, page, "The user is told so.\n\nAnd told again.\n")
    assert failed.returncode == 1
    assert failed.stdout.endswith(f"{page}: 2 of these, 1 allowed: do not add new ones\n")


def test_the_baseline_shrinks_and_never_grows(tmp_path: Path) -> None:
    page, text = tmp_path / "page.md", "The user is told so. It is told again. Nobody is.\n"
    asked = check_allowing({"told": 3}, page, text.replace("Nobody", "No user"))
    assert (asked.stdout, asked.returncode) == (
        f"{page}: 2 of rule 'told', 3 allowed: run scripts/check_docs --update\n",
        0,
    )
    updated = check_allowing({"told": 3, "mend": 1}, page, text, "--update")
    assert json.loads((tmp_path / "baseline.json").read_text(encoding="utf-8")) == {str(page): {"told": 2}}
    assert (updated.stdout.count("nobody"), updated.returncode) == (1, 1)
