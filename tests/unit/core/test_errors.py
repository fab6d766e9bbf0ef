"""Every error has an exit code for scripts and a gRPC status, and finds its way back from the wire."""

import time

import grpc
import pytest

from fractune_core.errors import BadModel, BadRequest, FractuneError, error_from_name, error_kinds, some_of

KINDS = {name: kind for name, kind in error_kinds().items() if kind.__module__ == "fractune_core.errors"}


def test_codes() -> None:
    for name, kind in KINDS.items():
        assert kind.exit_code in {*range(1, 10), 11, 12}, name  # code 10 means a missed goal, not an error
        assert hasattr(grpc.StatusCode, kind.grpc_status), name


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("one line; é", "one line; é"),
        ("two\n  lines", "two lines"),
        ("\x1b[2J\0 \u202e", r"\x1b[2J\x00 \u202e"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_a_message_is_one_line_on_which_no_terminal_acts(message: str, shown: str) -> None:
    assert str(BadModel(message)) == shown


def test_a_message_of_any_length_keeps_its_begin_and_its_end() -> None:
    shown = str(BadModel(f"node '{'A' * 5_000_000}' has operator Nope; export without it"))
    assert len(shown) == 2_000
    assert shown.startswith("node 'AAA")
    assert " ... " in shown
    assert shown.endswith("A' has operator Nope; export without it")


def test_an_unknown_name_is_still_an_error_of_ours() -> None:
    assert type(error_from_name("Nonsense", "x")) is FractuneError


def test_of_many_names_a_message_has_ten_and_the_number_of_the_others() -> None:
    assert some_of(["a", "b"]) == "a, b"
    assert some_of(map(str, range(10))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert some_of(map(str, range(13))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 more"


def test_the_line_of_a_value_of_millions_of_characters_is_made_at_once() -> None:
    began = time.process_time()
    assert len(str(BadRequest(f"name '{chr(1) * (4 << 20)}' is wrong"))) == 2_000
    assert time.process_time() - began < 0.2
