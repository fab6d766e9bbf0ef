"""The checks of Markdown (width of lines, English of sentences) and of the words in Python texts."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_docs"
LONG = "word " * 24 + "end"
LONG_SENTENCE = "One\n" + "word\n" * 29 + "end."
LINK = f"[{'a title ' * 12}](docs/page.md)"


def check(page: Path, text: str) -> subprocess.CompletedProcess[str]:
    page.write_text(text, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(page)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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
def test_what_cannot_be_broken_may_be_long_and_plain_sentences_pass(tmp_path: Path, text: str) -> None:
    ended = check(tmp_path / "page.md", text + "\n")
    assert (ended.stdout, ended.returncode) == ("", 0)


def test_lines_after_code_are_prose_again(tmp_path: Path) -> None:
    ended = check(tmp_path / "page.md", f"```\ncode\n```\n{LONG}\n\n    code\n\n{LONG}\n")
    assert [line.split(":")[1] for line in ended.stdout.splitlines()] == ["4", "8"]


def test_a_wrapped_line_of_code_is_named(tmp_path: Path) -> None:
    ended = check(tmp_path / "page.md", "    fractune tune\nmodel.onnx\n\n    code\n\ntext\n")
    assert [line.split(":")[1] for line in ended.stdout.splitlines()] == ["2"]


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


def test_words_in_comments_and_strings_of_python_are_named_and_those_in_names_are_not(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    text = '"""Two parts, of\nwhich one."""\ntold = 1  # Nobody reads it\nshown = f"{told} and `nobody`, told"\n'
    ended = check(module, text)
    assert [line.partition(": ")[2] for line in ended.stdout.splitlines()] == [
        '"of which" in a comment or a string',
        '"nobody" in a comment or a string',
        '"told" in a comment or a string',
    ]
    assert [line.split(":")[1] for line in ended.stdout.splitlines()] == ["1", "3", "4"]


def test_a_long_sentence_of_a_docstring_is_named(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    words = LONG_SENTENCE.replace("\n", " ")
    ended = check(
        module,
        f'"""A module."""\n\n\ndef run() -> str:\n    """Run it.\n\n    {words}\n    """\n    return "{words}"\n',
    )
    assert ended.stdout.startswith(f"{module}:7: 31 words, at most 30: One word")
    assert len(ended.stdout.splitlines()) == 1
