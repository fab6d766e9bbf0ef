"""JSON is of the shape that a type declares, or the error says where it is not."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from fractune_core.codec.messages import from_lists, seconds, timestamp, to_proto
from fractune_core.codec.plain_json import checked, read_json
from fractune_core.errors import BadRequest
from fractune_core.jobs import JobOptions, JobSpec
from fractune_core.pb import fractune_pb2 as pb
from tests.support.samples import DISTURBANCE, validation


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    count: int
    label: str = ""


class Outer(TypedDict):
    kind: Literal["outer"]
    secs: list[float]
    inner: Inner
    colour: Colour
    best: float | None
    more: NotRequired[dict[str, int]]


GOOD: dict[str, Any] = {"kind": "outer", "secs": [1, 0.5], "inner": {"count": 2}, "colour": "red", "best": None}


@pytest.mark.parametrize("more", [{}, {"more": {"a": 1}}, {"best": 2.0}, {"of a later version": [{}]}])
def test_what_fits_is_let_pass(more: dict[str, Any]) -> None:
    checked(Outer, {**GOOD, **more})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "other"}, r"Invalid enum value 'other' - at `\$\.kind`"),
        ({"secs": [1.0, "2"]}, r"Expected `float`, got `str` - at `\$\.secs\[1\]`"),
        ({"secs": [True]}, r"got `bool` - at `\$\.secs\[0\]`"),
        ({"secs": [10**400]}, r"secs\[0\]"),
        ({"inner": None}, r"Expected `object`, got `null` - at `\$\.inner`"),
        ({"inner": {}}, r"missing required field `count` - at `\$\.inner`"),
        ({"inner": {"count": 2**63}}, r"whole number has more than 64 bits - at `\$\.inner\.count`"),
        ({"inner": {"count": 1, "label": "\0"}}, r"not a text that can be stored - at `\$\.inner\.label`"),
        ({"inner": {"count": 1, "label": "\ud800"}}, r"inner\.label"),
        ({"colour": "blue"}, "blue"),
        ({"best": "fast"}, r"Expected `float \| null`, got `str` - at `\$\.best`"),
        ({"more": {"a": None}}, r"Expected `int`, got `null` - at `\$\.more"),
        ({"more": {"\ud800": 1}}, r"not a text that can be stored - at `\$\.more"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked(Outer, {**GOOD, **changes})


def test_what_is_needed_must_be_there() -> None:
    for name in GOOD:
        with pytest.raises(ValueError, match=f"missing required field `{name}`"):
            checked(Outer, {key: value for key, value in GOOD.items() if key != name})


def test_a_record_is_written_as_json_reads_it() -> None:
    written = validation("[]", 2, 1e-3, disturbance=DISTURBANCE).to_json()
    assert written == read_json(json.dumps(written))


def test_text_that_is_nested_too_deeply_is_no_json() -> None:
    assert read_json('{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValueError, match="nested too deeply"):
        checked(Any, _nested(100_000))
    for text in ("[" * 100_000, b"\xff", "{", '{"a":' * 50_000):
        with pytest.raises(ValueError, match=r"."):
            read_json(text)


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


_TWO_THREADS = """
import sys
import threading
from dataclasses import dataclass

from fractune_core.codec.plain_json import from_json

@dataclass
class Inner:
    count: "read_while_another_thread_converts()"

@dataclass
class Outer:
    name: str
    inner: Inner

def read_while_another_thread_converts():
    another.start()
    while another.is_alive() and not waits():
        pass
    return int

def waits():
    frame = sys._current_frames().get(another.ident)
    return frame is not None and frame.f_code.co_name == "_describe"

DATA = {"name": "x", "inner": {"count": 1}}
another = threading.Thread(target=from_json, args=(Outer, DATA))
from_json(Outer, DATA)
another.join()
"""


def test_two_threads_may_convert_to_a_new_type_at_once() -> None:
    subprocess.run([sys.executable, "-c", _TWO_THREADS], check=True, timeout=60)


@pytest.mark.parametrize("options", [{"trials": 3_000_000_000}, {"seed": 2**64}, {"round_size": 2**31}])
def test_it_is_a_bad_request_that_names_the_message(options: JobOptions) -> None:
    with pytest.raises(BadRequest, match=r"^JobSpec: .*[Vv]alue"):
        to_proto(JobSpec.requested("m.onnx", "cpu:1", **options), pb.JobSpec)


def test_so_is_a_number_inside_a_list() -> None:
    """Lists are messages of their own, made before the message around them."""
    with pytest.raises(BadRequest, match=r"^JobSpec: .*[Vv]alue"):
        to_proto(replace(JobSpec.requested("m.onnx", "cpu:1"), inputs={"x": [2**63]}), pb.JobSpec)
    with pytest.raises(BadRequest, match=r"^Shape: .*[Vv]alue"):
        from_lists({"x": [2**63]}, pb.Shape)


def test_seconds_come_back() -> None:
    assert seconds(timestamp(1_700_000_000.25)) == pytest.approx(1_700_000_000.25, abs=1e-6)


def test_stamps_and_seconds_that_are_no_time_are_refused() -> None:
    for fields in ({"seconds": 2**63 - 1}, {"seconds": -(2**63)}, {"nanos": 2**31 - 1}, {"nanos": -1}):
        with pytest.raises(BadRequest, match="no time of the years 1 to 9999"):
            seconds(Timestamp(**fields))
    for value in (1e12, -1e12, 1e300, math.nan, math.inf):
        with pytest.raises(BadRequest, match="no time of the years 1 to 9999"):
            timestamp(value)
