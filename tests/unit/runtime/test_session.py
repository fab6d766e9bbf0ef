"""The session of ONNX Runtime's manner, beside the real one."""

import ctypes
import os
import pickle
import queue
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest

import fractune
from fractune_core.errors import BadRequest
from tests.support.real_bundle import Small

Refused = Callable[[Any], Any]
"""a call with wrong arguments, given a session"""
IMAGE = np.full((1, 4, 16, 16), 0.5, "float32")
IGNORED = "small.fractune runs by CPUExecutionProvider and ignores "


@pytest.fixture
def without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "onnxruntime.capi.onnxruntime_pybind11_state"):
        monkeypatch.delitem(sys.modules, name)


def told(small: Small, *args: Any, **options: Any) -> list[str]:
    """The warnings of a new session."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fractune.InferenceSession(small.bundle, *args, **options)
    assert {each.filename for each in seen} <= {__file__}
    return [str(each.message) for each in seen]


def test_the_same_program_over_both(small: Small) -> None:
    ours = fractune.InferenceSession(small.bundle, providers=["CPUExecutionProvider"])
    theirs = onnxruntime.InferenceSession(str(small.model), providers=["CPUExecutionProvider"])
    for nodes, others in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(node.name, node.shape, node.type) for node in nodes] == [
            (node.name, node.shape, node.type) for node in others
        ]
    for each in ("get_providers", "get_provider_options", "get_overridable_initializers", "end_profiling"):
        assert getattr(ours, each)() == getattr(theirs, each)()
    assert ours.get_session_options().intra_op_num_threads == theirs.get_session_options().intra_op_num_threads
    ours.disable_fallback()
    ours.enable_fallback()
    for names in (None, [], ["y"]):
        for output, expected in zip(ours.run(names, {"x": IMAGE}), theirs.run(names, {"x": IMAGE}), strict=True):
            np.testing.assert_allclose(output, expected, rtol=1e-4)


@pytest.mark.parametrize("which", ["small", "listener"])
def test_the_metadata_are_those_of_the_file(which: str, request: pytest.FixtureRequest) -> None:
    files: Small = request.getfixturevalue(which)
    ours = fractune.InferenceSession(files.bundle).get_modelmeta()
    theirs = onnxruntime.InferenceSession(files.model).get_modelmeta()
    for name in filter(lambda name: not name.startswith("_"), dir(theirs)):
        assert getattr(ours, name) == getattr(theirs, name)


def test_one_warning_lists_what_is_ignored(small: Small) -> None:
    options = onnxruntime.SessionOptions()
    assert not told(small, options)
    options.intra_op_num_threads = options.inter_op_num_threads = 64
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert not told(small, options, ["CPUExecutionProvider"], [{}], enable_fallback=0)
    options.enable_mem_pattern = False
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = ["CUDAExecutionProvider", ("CPUExecutionProvider", {"use_arena": "1"})]
    listed = (
        "CUDAExecutionProvider, CPUExecutionProvider's use_arena = 1, enable_mem_pattern = False, "
        "execution_mode = ExecutionMode.ORT_PARALLEL, session.intra_op.allow_spinning = 0"
    )
    assert told(small, options, providers) == [IGNORED + listed]
    own = fractune.SessionOptions(enable_mem_pattern=False)
    own.add_session_config_entry("session.set_denormal_as_zero", "0")
    assert told(small, own) == [f"{IGNORED}enable_mem_pattern = False, session.set_denormal_as_zero = 0"]


def test_another_provider_is_ignored(small: Small) -> None:
    session = fractune.InferenceSession(small.bundle)
    session.set_providers()
    with pytest.warns(UserWarning, match=f"^{IGNORED}CUDAExecutionProvider$"):
        session.set_providers(["CUDAExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("providers", "options"),
    [([("CPUExecutionProvider", 1)], None), ([1], None), (["A", "B"], [{}]), ([("A", {})], [{}])],
)
def test_providers_of_another_form_are_refused(small: Small, providers: Any, options: Any) -> None:
    with pytest.raises(ValueError, match=r"^provider"):
        fractune.InferenceSession(small.bundle, None, providers, options)


def test_an_option_that_is_not_there_is_refused(small: Small) -> None:
    with pytest.raises(TypeError, match="InferenceSession has no option 'shares'"):
        fractune.InferenceSession(small.bundle, shares="cpu:1")


def test_threads_are_at_most_those_of_the_options(small: Small, two_cpus: list[int]) -> None:
    os.sched_setaffinity(0, two_cpus)
    for threads, expected in ((0, 2), (1, 1), (2, 2), (8, 2)):
        session = fractune.InferenceSession(small.bundle, fractune.SessionOptions(threads))
        assert session.model.threads == expected
        assert session.get_session_options().intra_op_num_threads == threads
    assert fractune.InferenceSession(small.bundle, fractune.SessionOptions(2), share="cpu:1").model.threads == 1


def test_a_model_in_parts_has_a_session_too(in_parts: Small) -> None:
    options = fractune.SessionOptions(1)
    ours = fractune.InferenceSession(in_parts.bundle, options)
    theirs = onnxruntime.InferenceSession(in_parts.model)
    feed = ours.model.random_inputs()
    for output, expected in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-5)
    assert (ours.model.threads, ours.get_modelmeta().graph_name) == (1, "")


def test_a_constant_may_be_given_with_its_numbers(listener: Small) -> None:
    session = fractune.InferenceSession(listener.bundle)
    feed = {"input": np.zeros((1, 64), "float32"), "state": np.zeros((2, 1, 16), "float32")}
    assert [node.name for node in session.get_inputs()] == list(feed)
    for rate in (np.array(16000), np.array([16000.0])):
        assert session.run(["output"], {**feed, "sr": rate})[0] == session.run(["output"], feed)[0]
    for wrong in (np.array(8000), np.array([8000, 16000])):
        with pytest.raises(BadRequest, match=r"'sr' was made a constant .* has other numbers here; leave it out"):
            session.run(None, {**feed, "sr": wrong})


def test_errors_are_of_both_worlds_and_can_be_pickled(small: Small) -> None:
    session = fractune.InferenceSession(str(small.bundle), share="cpu:1")
    with pytest.raises(BadRequest, match="the model has no output 'z'; it gives y") as caught:
        session.run(["z"], session.model.random_inputs())
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (type(copied), str(copied)) == (BadRequest, str(caught.value))
    with pytest.raises(ValueError, match="inputs: list is not a mapping"):
        session.run(None, [IMAGE])  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_onnxruntime")
def test_without_onnxruntime_there_are_tensors_of_our_own(small: Small) -> None:
    session = fractune.InferenceSession(small.bundle, fractune.SessionOptions(intra_op_num_threads=1))
    with pytest.raises(ValueError, match="no output 'z'") as caught:
        session.run_with_ort_values(["z"], {})
    assert type(caught.value).__mro__[1] is BadRequest
    image = fractune.OrtValue.ortvalue_from_numpy(IMAGE)
    [output] = session.run_with_ort_values(None, {"x": image})
    assert isinstance(output, fractune.OrtValue)
    expected = session.run(None, {"x": IMAGE})[0]
    for array in (output.numpy(), np.from_dlpack(output)):
        np.testing.assert_array_equal(array, expected)
    assert (output.shape(), output.data_type(), output.device_name()) == ([1, 10], "tensor(float)", "cpu")
    assert output.data_ptr() == output.numpy().ctypes.data
    backwards = fractune.OrtValue.ortvalue_from_numpy(np.arange(9.0)[::-1])
    assert list((ctypes.c_double * 9).from_address(backwards.data_ptr())) == list(range(8, -1, -1))
    place = fractune.OrtValue.ortvalue_from_shape_and_type([1, 10], 1)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", image)
    binding.bind_ortvalue_output("y", place)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(place.numpy(), expected)
    assert binding.get_outputs() == [place]
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)


def test_bindings_that_cannot_be_used_are_refused(small: Small) -> None:
    session, other = (fractune.InferenceSession(small.bundle, share="cpu:1") for _ in range(2))
    binding = session.io_binding()
    with pytest.raises(ValueError, match="of another session; make it by"):
        other.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="the device is 'cuda'; give memory of the CPU here"):
        binding.bind_input("x", "cuda", 0, np.float32, IMAGE.shape, 64)
    with pytest.raises(ValueError, match="the device is 'cuda'"):
        fractune.OrtValue.ortvalue_from_numpy(IMAGE, "cuda")
    with pytest.raises(ValueError, match="output 'y' has an address alone"):
        binding.bind_output("y", buffer_ptr=64)
    with pytest.raises(ValueError, match="element_type is 8, which no tensor"):
        binding.bind_output("y", "cpu", 0, 8, [1, 10], 64)
    binding.bind_cpu_input("x", IMAGE)
    binding.bind_ortvalue_output("y", fractune.OrtValue(np.zeros((1, 9), "float32")))
    with pytest.raises(ValueError, match=r"tensor\(float\) of the shape \[1, 9\], and .* \[1, 10\]; bind memory"):
        session.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    with pytest.raises(ValueError, match="given: nothing"):
        session.run_with_iobinding(binding)


def bind_at(name: Any = "x", kind: Any = np.float32, shape: Any = (1, 4, 16, 16), address: Any = None) -> Refused:
    """Bind an input and an output; by default, the image's own memory."""
    address = IMAGE.ctypes.data if address is None else address
    return lambda session: [
        bind(name, "cpu", 0, kind, shape, address)
        for bind in (session.io_binding().bind_output, session.io_binding().bind_input)
    ]


def zeros_of(shape: Any) -> Refused:
    return lambda _: fractune.OrtValue.ortvalue_from_shape_and_type(shape, 1)


def bind_value(value: Any, name: Any = "y") -> Refused:
    def run(session: fractune.InferenceSession) -> None:
        binding = session.io_binding()
        binding.bind_cpu_input("x", IMAGE)
        binding.bind_ortvalue_output(name, value)
        session.run_with_iobinding(binding)

    return run


READ_ONLY = np.broadcast_to(np.zeros((), "float32"), (1, 10)).copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda session: session.run("y", {"x": IMAGE}), "output_names is 'y'; give a list"),
        (lambda session: session.run([["y"]], {"x": IMAGE}), r"output_names is \[\['y'\]\]; give a list"),
        (lambda session: session.run(5, {"x": IMAGE}), "output_names is 5; give a list"),
        (lambda session: session.run_async("y", {"x": IMAGE}, print, None), "output_names is 'y'"),
        (lambda session: session.io_binding().bind_output(["y"]), r"the name to bind is \['y'\]"),
        (lambda session: session.io_binding().bind_cpu_input(5, IMAGE), "the name to bind is 5"),
        (bind_at(name=["x"]), r"the name to bind is \['x'\]"),
        *((bind_at(address=each), f"buffer_ptr is {each}, where") for each in (0, -64, 2**63 - 1, 2**70, 64.0)),
        *(
            (bind_at(shape=each), "shape is .*, which no")
            for each in ([-2, 3], [-2, -3], [2.0, 3], [2**70], "23", [2**62])
        ),
        *((bind_at(kind=each), "element_type is .*, which no") for each in (99, "nope", object, "U")),
        (
            lambda session: session.io_binding().bind_input("x", "cpu", 0, None, IMAGE.shape, 64),
            "element_type is None, which no",
        ),
        *((zeros_of(each), "shape is .*, which no") for each in ([-1], [1.5], [2**62])),
        (lambda _: fractune.OrtValue(IMAGE.copy()).update_inplace(IMAGE[:, :1]), r"\[1, 1, 16, 16\], and the OrtValue"),
        (lambda _: fractune.OrtValue(IMAGE.copy()).update_inplace(0.5), r"shape \[\], and the OrtValue"),
        (
            lambda _: fractune.OrtValue(IMAGE.copy()).update_inplace(IMAGE.astype("float64")),
            r"the data is tensor\(double\) .* the OrtValue is tensor\(float\)",
        ),
        (bind_value(fractune.OrtValue(READ_ONLY)), "read-only array; make it over a copy"),
        (bind_value(np.zeros((1, 10), "float32")), "'y' is bound to a value of type ndarray; give an OrtValue"),
        (bind_value(fractune.OrtValue(IMAGE), name={}), "the name to bind is {}"),
        (
            lambda session: session.io_binding().bind_ortvalue_input("x", IMAGE),
            "'x' is bound to a value of type ndarray",
        ),
    ],
)
def test_wrong_arguments_are_bad_requests(small: Small, refused: Refused, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        refused(fractune.InferenceSession(small.bundle, share="cpu:1"))
    assert isinstance(caught.value, ValueError)


def test_a_tensor_lies_in_its_own_memory() -> None:
    numbers = np.arange(12, dtype="float32").reshape(3, 4)
    assert fractune.OrtValue(numbers).data_ptr() == numbers.ctypes.data
    for view in (numbers[::-1], numbers.T, numbers[:, ::2]):
        value = fractune.OrtValue(view)
        assert list((ctypes.c_float * view.size).from_address(value.data_ptr())) == view.ravel().tolist()
    copied = fractune.OrtValue.ortvalue_from_shape_and_type([3, 4], np.float32)
    for given in (numbers, fractune.OrtValue(numbers), onnxruntime.OrtValue.ortvalue_from_numpy(numbers)):
        copied.update_inplace(np.zeros_like(numbers))
        copied.update_inplace(given)
        np.testing.assert_array_equal(copied.numpy(), numbers)


def test_an_empty_tensor_may_have_no_address(small: Small) -> None:
    binding = fractune.InferenceSession(small.bundle, share="cpu:1").io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, [0, 4, 16, 16], 0)
    binding.bind_output("y", "cpu", 0, np.float32, [0, 10], 0)


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt("stop"), RuntimeError("stop")])
def test_the_callback_gets_every_error(small: Small, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    session = fractune.InferenceSession(small.bundle, share="cpu:1")
    answers: queue.Queue[tuple[list[Any], object, str]] = queue.Queue()

    def answer(*answered: Any) -> None:
        answers.put(answered)

    session.run_async((name for name in ["y"]), {"x": IMAGE}, answer, 1)  # type: ignore[arg-type]
    [output], number, message = answers.get(timeout=30)
    assert (output.shape, number, message) == ((1, 10), 1, "")
    monkeypatch.setattr(session.model, "run", Mock(side_effect=error))
    session.run_async(["y"], {"x": IMAGE}, answer, 2)
    assert answers.get(timeout=30) == ([], 2, str(error) or "SystemExit()")


def test_a_bundle_in_bytes_is_checked_too(small: Small, tmp_path: Path) -> None:
    data = Path(small.bundle).read_bytes()
    assert fractune.InferenceSession(data, share="cpu:1").run(None, {"x": IMAGE})[0].shape == (1, 10)
    with pytest.raises(fractune.errors.BadBundle, match=r"bundle: .* the file is torn"):
        fractune.InferenceSession(data[:-1])
    with pytest.raises(fractune.errors.BadBundle, match=r"^small.onnx: a model is not .* `fractune tune small.onnx`"):
        fractune.InferenceSession(small.model)
    with pytest.raises(fractune.errors.BadBundle, match="no such file"):
        fractune.InferenceSession(tmp_path / "none.fractune")
