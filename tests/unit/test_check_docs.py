"""The checks of Markdown (width of lines, English of sentences) and of the words in Python texts."""

import runpy
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

FAULTS = runpy.run_path(str(REPOSITORY / "scripts" / "check_docs"))["faults"]
LONG = "word " * 24 + "end"
LONG_SENTENCE = "One\n" + "word\n" * 29 + "end."
LINK = f"[{'a title ' * 12}](docs/page.md)"


def faults(folder: Path, text: str, name: str = "page.md") -> list[tuple[int, str]]:
    (folder / name).write_text(text, encoding="utf-8")
    return list(FAULTS(folder / name))


@pytest.mark.parametrize("line", [LONG, f"- {LONG}", f"> {LONG}", f"    {LONG}", f"see {LINK}"])
def test_a_long_line_is_named(tmp_path: Path, line: str) -> None:
    assert faults(tmp_path, f"A short line\n{line}\n") == [(2, f"{len(line)} characters, at most 100")]


@pytest.mark.parametrize(
    "text",
    [
        f"| {LONG} | cell |",
        f"```\n{LONG}\n```",
        f"Text:\n\n    {LONG}\n    {LONG}",
        f"- {LINK},",
        "https://example.com/" + "a" * 100,
        "One " + "word " * 14 + "end.\nAnother " + "word " * 14 + "end.",
        "One `" + "word\n" * 40 + "` end.",
        f"[One](https://example.com/{'a' * 90})\n" + "word\n" * 26 + "end.",
        f"```\n{LONG_SENTENCE}\nWhat is told is code.\n```",
        "- one\n- " + "\n- ".join(["a word and a word"] * 10),
        "| what | then |\n\n# What is measured\n\n**What is measured.** Each candidate.\n\nWhat is measured?",
        "`nobody` is a name; amendments and untold stories are other words.",
    ],
)
def test_what_cannot_be_broken_may_be_long_and_plain_sentences_pass(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text + "\n") == []


def test_lines_after_code_are_prose_again_and_a_wrapped_line_of_code_is_named(tmp_path: Path) -> None:
    prose = faults(tmp_path, f"```\ncode\n```\n{LONG}\n\n    code\n\n{LONG}\n")
    wrapped = faults(tmp_path, "    fractune tune\nmodel.onnx\n\n    code\n\ntext\n")
    assert [[line for line, _ in found] for found in (prose, wrapped)] == [[4, 8], [2]]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (LONG_SENTENCE, "31 words, at most 30: "),
        (f"- An entry\n- {LONG_SENTENCE}", "31 words, at most 30: "),
        ("It is small; what is kept stays.", "a clause as subject: "),
        ("*Who leaves at once* misses the end.", "a clause as subject: "),
        ("Two parts, of\nwhich one is kept.", '"of which": '),
        ("| cell | Nobody reads it |", '"nobody": '),
        ("# Mended on the way", '"mend": '),
        ("The user is told so.", '"told": '),
    ],
)
def test_a_sentence_that_must_be_decoded_is_named(tmp_path: Path, text: str, fault: str) -> None:
    ((line, found),) = faults(tmp_path, f"First.\n\n{text}\n")
    assert line == (4 if text.startswith("- An entry") else 3)
    assert found.startswith(fault)


def test_words_in_comments_strings_and_docstrings_of_python_are_named_and_those_in_names_are_not(
    tmp_path: Path,
) -> None:
    text = '"""Two parts, of\nwhich one."""\ntold = 1  # Nobody reads it\nshown = f"{told} and `nobody`, told"\n'
    words = LONG_SENTENCE.replace("\n", " ")
    long = f'\n\ndef run() -> str:\n    """Run it.\n\n    {words}\n    """\n    return "{words}"\n'
    found = faults(tmp_path, text + long, "module.py")
    expected = [(1, '"of which" in a comment'), (3, '"nobody" in'), (4, '"told" in'), (10, "31 words, at most 30: One")]
    for (line, fault), (at, begin) in zip(found, expected, strict=True):
        assert (line, fault[: len(begin)]) == (at, begin)
