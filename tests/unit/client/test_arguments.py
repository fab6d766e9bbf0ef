"""A wrong argument of a public function is an error of ours, before anything is done."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fractune as typed_fractune
from fractune.arguments import checked
from fractune_core.errors import BadRequest, ServerUnreachable
from fractune_runtime.tvm_runtime.tensors import TensorSpec, as_arrays

fractune: Any = typed_fractune  # wrong types are the point here
ONE = ("m.onnx", "cpu:1")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fractune.tune("m", shares=1), r"shares: 1 is of type int; give a text or a sequence \(a text each\)"),
        (lambda: fractune.tune("m.onnx", ["cpu:1", 2]), r"shares\[1\]: 2 is of type int; give a text"),
        (lambda: fractune.tune(*ONE, trials="8"), "trials: '8' is of type str; give a whole number or None"),
        (lambda: fractune.tune(*ONE, trials=True), "trials: True is of type bool"),
        (lambda: fractune.tune(*ONE, minutes="x"), "minutes: 'x' is of type str; give a number or None"),
        (
            lambda: fractune.tune(*ONE, inputs={"x": 12}),
            r"inputs\['x'\]: 12 is of type int; give a tuple \(a sequence \(a whole number each\), a text\) or a seq",
        ),
        (lambda: fractune.tune(*ONE, inputs={"x": ((1, 3), 1)}), r"inputs\['x'\]\[1\]: 1 is of type int; give a text"),
        (lambda: fractune.tune(*ONE, out=3), "out: 3 is of type int; give a text or a path"),
        (lambda: fractune.knee("m.onnx", "cpu:1", slack="x"), "slack: 'x' is of type str; give a number"),
        (lambda: fractune.load("m.fractune", goal="x"), "goal is 'x'; give 'latency' or 'throughput'$"),
        (lambda: fractune.load(3), "path: 3 is of type int"),
        (lambda: fractune.connect(3), "address: 3 is of type int"),
        (lambda: fractune.local_stack(5), "shares: 5 is of type int"),
        (lambda: fractune.connect("127.0.0.1:1").jobs(limit="5"), "limit: '5' is of type str"),
        (lambda: fractune.connect("127.0.0.1:1").job("j").bundle(3), "out: 3 is of type int"),
        (lambda: fractune.connect("127.0.0.1:1").job(3), "name: 3 is of type int"),
        (lambda: fractune.connect("127.0.0.1:1").submit("m", "cpu:1", seed="s"), "seed: 's' is of type str"),
    ],
)
def test_a_wrong_type_names_the_argument_and_what_to_give(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(BadRequest, match=f"^{says}"):
        call()


def test_numbers_of_numpy_paths_and_shapes_with_a_constant_are_taken(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    options: dict[str, Any] = {"trials": np.int64(8), "minutes": np.float32(1.0), "out": tmp_path / "m.fractune"}
    with pytest.raises(ServerUnreachable):
        fractune.tune(tmp_path / "m.onnx", ("cpu:1",), server="127.0.0.1:1", **options)
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(ServerUnreachable):
        fractune.tune(tmp_path / "m.onnx", "cpu:1", server="127.0.0.1:1", inputs={"x": ((1, 3), "const:1")})


@pytest.mark.parametrize("inputs", [[np.zeros(2)], np.zeros(2), None])
def test_inputs_without_names_are_refused(inputs: Any) -> None:
    with pytest.raises(BadRequest, match=r"is not a mapping; give arrays by name, as \{'x': array\}"):
        as_arrays([TensorSpec("x", "float32", (2,))], inputs)


def test_an_error_names_arguments_and_not_options(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(BadRequest, match=r"^min_gain is 0\.1 and needs until_beats; name the peer there"):
        fractune.tune(tmp_path / "m.onnx", "cpu:1", min_gain=0.1)
    with pytest.raises(BadRequest, match=r"^state and server exclude each other"):
        fractune.cost(server="h:1", state=tmp_path)


def test_an_apostrophe_in_a_word_begins_no_quoted_text() -> None:
    @checked
    def search(min_gain: float) -> None:
        raise BadRequest(f"the peer's --min-gain is {min_gain}, not the job's; write 'tune --min-gain 1'")

    with pytest.raises(BadRequest, match=r"^the peer's min_gain is 2, not the job's; write 'tune --min-gain 1'$"):
        search(2)


@pytest.mark.parametrize("address", ["tuner", "tuner:", ":50051", "tuner:http"])
def test_an_address_without_a_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(BadRequest, match="write HOST:PORT, such as localhost:50051, or unix:PATH"):
        fractune.connect(address)


def test_a_knee_of_one_share_is_refused_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(BadRequest, match=r"^shares cpu:1: a knee needs two shares"):
        fractune.knee(tmp_path / "m.onnx", "cpu:1", server="127.0.0.1:1")
