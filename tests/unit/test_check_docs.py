"""The check of line lengths in Markdown: what it finds, and what it lets through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_docs"
LONG = "word " * 24 + "end"
LINK = f"[{'a title ' * 12}](docs/page.md)"


def check(page: Path, text: str) -> subprocess.CompletedProcess[str]:
    page.write_text(text, encoding="utf-8")
    return subprocess.run([sys.executable, str(SCRIPT), str(page)], capture_output=True, text=True, check=False)


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
