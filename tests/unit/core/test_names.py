"""What may be the name of a model's file, and the names of a bundle's variants."""

from __future__ import annotations

from itertools import product

import pytest

from fractune_core.errors import BadRequest
from fractune_core.names import check_file_name, explained_variant, plain_variant


@pytest.mark.parametrize("name", ["m", "m.onnx", "two words.onnx", "é" * 100, "..onnx", "[red]x", "x" * 200])
def test_a_files_name_is_taken(name: str) -> None:
    check_file_name(name, "display_name")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "a/b", "../x", "a\0b", "a\nb", "\x1b[2J", "\u202e", "\udc80", "x" * 201, "é" * 101]
)
def test_what_is_no_files_name_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match=r"^display_name is '.*'; name the file by 1 to 200 bytes of printable UTF-8"):
        check_file_name(name, "display_name")


def test_a_name_that_is_too_long_is_quoted_in_part() -> None:
    with pytest.raises(BadRequest, match=r"is 'B+ \.\.\. B+';") as caught:
        check_file_name("B" * 2_000_000, "display_name")
    assert len(str(caught.value)) < 250


def test_a_variant_s_name_without_its_ends_is_its_share() -> None:
    for plain, end in product(("mps:25", "robust"), ("", "+attention", "+graph", "+attention+graph")):
        assert plain_variant(plain + end) == plain
    assert "full" not in map(plain_variant, ("full+graph+attention", "full+other"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("full", "'full'"),
        ("mps:25+graph", "'mps:25+graph' (CUDA graphs)"),
        ("full+attention", "'full+attention' (attention as one kernel)"),
        ("full+attention+graph", "'full+attention+graph' (attention as one kernel, CUDA graphs)"),
        ("mig:1g.10gb+me", "'mig:1g.10gb+me'"),
        ("robust+graph", "'robust+graph' (made for all shares, CUDA graphs)"),
    ],
)
def test_the_ends_of_a_variant_s_name_are_explained(name: str, text: str) -> None:
    assert explained_variant(name) == text
