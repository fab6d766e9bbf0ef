"""How public programs call `onnxruntime.InferenceSession`: each pattern runs with that class on the ONNX file, and with
ours on its bundle.
"""

import ast
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import fractune
from tests.support.encoders import inputs_of
from tests.support.real_bundle import Small

Pattern = Callable[[Any, str], list[Any]]
"""what a program computes, with a class of sessions and a file"""

pytestmark = pytest.mark.filterwarnings("ignore:.* and ignores :UserWarning", "ignore:Specified provider:UserWarning")

ON_CPU = ["CPUExecutionProvider"]
IMAGE = np.linspace(-1, 1, 1024, dtype="float32").reshape(1, 4, 16, 16)
SOUND = np.sin(np.arange(4 * 64, dtype="float32") / 9)


def options_of(**options: Any) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    for name, value in options.items():
        setattr(made, name, value)
    return made


def rapidocr(session_class: Any, path: str) -> list[Any]:
    """Quiet options, providers with options of their own, a look whether they were taken, the alphabet of a reader in
    the metadata.
    """
    options = options_of(
        log_severity_level=4,
        enable_cpu_mem_arena=False,
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
        intra_op_num_threads=1,
    )
    own = ("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    session = session_class(path, sess_options=options, providers=[own])
    assert session.get_providers()[0] == own[0]
    names = [each.name for each in session.get_inputs()]
    outputs = session.run([each.name for each in session.get_outputs()], dict(zip(names, [IMAGE], strict=True)))
    return [outputs[0], "character" in session.get_modelmeta().custom_metadata_map]


def silero_vad(session_class: Any, path: str) -> list[Any]:
    """A wrapper that holds the state between chunks, and gives the rate with each."""
    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = 1
    session = session_class(path, providers=ON_CPU, sess_options=options)
    state, found = np.zeros((2, 1, 16), dtype="float32"), []
    for chunk in SOUND.reshape(4, 1, 64):
        output, state = session.run(None, {"input": chunk, "state": state, "sr": np.array(16000, dtype="int64")})
        found.append(output)
    return [np.concatenate(found), state]


def faster_whisper(session_class: Any, path: str) -> list[Any]:
    """The same detector, its options first and by place, with a view of the padded sound as input."""
    options = options_of(
        inter_op_num_threads=1, intra_op_num_threads=1, enable_cpu_mem_arena=False, log_severity_level=4
    )
    session = session_class(path, options, ON_CPU)
    state = np.zeros((2, 1, 16), "float32")
    padded = np.pad(SOUND, (8, 56)).reshape(-1, 64)
    found = [session.run(["output"], {"input": row[None], "state": state, "sr": np.array(16000)})[0] for row in padded]
    return [np.stack(found)]


def insightface(session_class: Any, path: str) -> list[Any]:
    """A router that looks at shapes for the kind of model, and moves the session to the CPU."""
    session = session_class(path, None, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    [taken] = session.get_inputs()
    size = None if isinstance(taken.shape[2], str) else tuple(taken.shape[2:4][::-1])
    session.set_providers(["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    found = session.run(names, {taken.name: IMAGE})[0]
    return [size, len(names), session.get_outputs()[0].shape[1], found / np.linalg.norm(found)]


def sentence_embedder(session_class: Any, path: str) -> list[Any]:
    """Only those arrays of a tokenizer that the model takes; a mean over the words."""
    session = session_class(path, providers=ON_CPU, sess_options=onnxruntime.SessionOptions())
    encoded = {**inputs_of(8, padding=3), "token_type_ids": np.zeros((1, 8), "int64")}
    taken = {each.name for each in session.get_inputs()}
    hidden = session.run(None, {name: np.array(each, "int64") for name, each in encoded.items() if name in taken})[0]
    mask = encoded["mask"][..., None].astype(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return [mean / np.linalg.norm(mean, axis=1, keepdims=True)]


def optimum(session_class: Any, path: str) -> list[Any]:
    """Maps of names to places, and memory by its addresses."""
    session = session_class(path, providers=ON_CPU, provider_options=[{}])
    inputs, outputs = (
        {node.name: place for place, node in enumerate(nodes)}
        for nodes in (session.get_inputs(), session.get_outputs())
    )
    given = {name: np.ascontiguousarray(each) for name, each in inputs_of(8).items()}
    binding = session.io_binding()
    for name in inputs:
        binding.bind_input(name, "cpu", 0, np.int64, given[name].shape, given[name].ctypes.data)
    memory = {"hidden": np.zeros((1, 8, 8), "float32"), "mean": np.zeros((1, 8), "float32")}
    for name in outputs:
        binding.bind_output(name, "cpu", 0, np.float32, memory[name].shape, memory[name].ctypes.data)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return [*memory.values(), list(inputs), list(outputs), session.get_inputs()[0].type]


def ultralytics(session_class: Any, path: str) -> list[Any]:
    """Metadata as Python literals, a look for half precision and open shapes, outputs in memory of the caller."""
    session = session_class(path, options_of(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    metadata = session.get_modelmeta().custom_metadata_map
    stride, labels = int(metadata["stride"]), ast.literal_eval(metadata["names"])
    half, is_open = "float16" in session.get_inputs()[0].type, isinstance(session.get_outputs()[0].shape[0], str)
    state = np.zeros((2, 1, 16), "float32")
    binding, bound = session.io_binding(), []
    for output in session.get_outputs():
        array = np.empty(output.shape, dtype="float16" if half else "float32")
        binding.bind_output(output.name, "cpu", 0, array.dtype.type, tuple(array.shape), array.ctypes.data)
        bound.append(array)
    for name, array in {"input": SOUND[None, :64], "state": state, "sr": np.array(16000)}.items():
        binding.bind_cpu_input(name, array)
    session.run_with_iobinding(binding)
    return [stride, labels, half, is_open, names, *bound]


def piper(session_class: Any, path: str) -> list[Any]:
    """A dict of arguments that grows, all outputs, the first without its axes of one."""
    session = session_class(path, sess_options=onnxruntime.SessionOptions(), providers=["CPUExecutionProvider"])
    arguments = {"ids": np.expand_dims(np.arange(8, dtype="int64"), 0)}
    arguments["mask"] = np.ones((1, 8), dtype="int64")
    return [session.run(None, arguments)[0].squeeze()]


def openwakeword(session_class: Any, path: str) -> list[Any]:
    """As many threads as it likes, the window's length from the shape, features as another type before."""
    options = options_of(inter_op_num_threads=8, intra_op_num_threads=8)
    session = session_class(path, sess_options=options, providers=["CPUExecutionProvider"])
    window, [label] = session.get_inputs()[0].shape[1], [each.name for each in session.get_outputs()][:1]
    features = IMAGE.astype("float64")[:, :window]
    return [window, label, session.run(None, {session.get_inputs()[0].name: features.astype(np.float32)})[0][0][0]]


def magika(session_class: Any, path: str) -> list[Any]:
    """A path object, no options, one output by its name."""
    session = session_class(Path(path), providers=["CPUExecutionProvider"])
    return [np.argmax(session.run(["y"], {"x": IMAGE})[0], axis=1)]


def kokoro(session_class: Any, path: str) -> list[Any]:
    """Names of inputs that say which export it is, lists made into arrays."""
    session = session_class(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    text = "ids" if "ids" in names else "tokens"
    return [
        session.run(None, {text: np.array([[1, 2, 3, 4, 5, 6, 7, 0]], "int64"), "mask": np.ones((1, 8), "int64")})[0]
    ]


def a_loop_of_tensors(session_class: Any, path: str) -> list[Any]:
    """The state stays in a tensor from run to run."""
    session = session_class(path, providers=ON_CPU)
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(each)
        for name, each in {"state": np.zeros((2, 1, 16), "float32"), "sr": np.array(16000)}.items()
    }
    for chunk in SOUND.reshape(4, 1, 64):
        values["input"] = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(chunk))
        output, values["state"] = session.run_with_ort_values(["output", "stateN"], values)
    return [output.numpy(), output.shape(), output.data_type(), output.device_name(), values["state"].numpy()]


def bound_tensors(session_class: Any, path: str) -> list[Any]:
    """Tensors that are bound once and written to, and an output that the session places."""
    session = session_class(path, providers=ON_CPU)
    image = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(IMAGE))
    place = onnxruntime.OrtValue.ortvalue_from_shape_and_type([1, 10], np.float32, "cpu", 0)
    binding, found = session.io_binding(), []
    binding.bind_ortvalue_input("x", image)
    binding.bind_ortvalue_output("y", place)
    session.run_with_iobinding(binding)
    found.append(place.numpy().copy())
    image.update_inplace(IMAGE)
    binding.clear_binding_outputs()
    binding.bind_output("y")
    session.run_with_iobinding(binding, onnxruntime.RunOptions())
    return [
        *found,
        *binding.copy_outputs_to_cpu(),
        binding.get_outputs()[0].numpy(),
        isinstance(binding.get_outputs()[0], onnxruntime.OrtValue),
    ]


def a_server(session_class: Any, path: str) -> list[Any]:
    """Bytes in place of a path, answers in another thread, wrong requests by their error."""
    session = session_class(Path(path).read_bytes(), providers=ON_CPU)
    done, found = threading.Event(), []

    def answer(outputs: list[Any], number: object, error: str) -> None:
        found.extend([number, bool(error), *outputs])
        done.set()

    for number, image in enumerate((IMAGE, IMAGE[0])):
        done.clear()
        session.run_async(["y"], {"x": image}, answer, number)
        assert done.wait(30)
    with pytest.raises(ValueError, match="x"):
        session.run(None, {})
    refused = onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument
    for names, feed in (
        (["z"], {"x": IMAGE}),
        (None, {"x": IMAGE[0]}),
        (None, {"x": IMAGE.astype("float64")}),
        (None, {"x": IMAGE, "q": IMAGE}),
    ):
        with pytest.raises(refused):
            session.run(names, feed)
    return found


@pytest.fixture(scope="module")
def files(small: Small, listener: Small, encoders: Path) -> Mapping[str, Small]:
    return {
        "image": small,
        "sound": listener,
        "text": Small(encoders / "encoder.onnx", encoders / "encoder-1x8.fractune"),
    }


@pytest.mark.parametrize(
    ("pattern", "model"),
    [
        (rapidocr, "image"),
        (silero_vad, "sound"),
        (faster_whisper, "sound"),
        (insightface, "image"),
        (sentence_embedder, "text"),
        (optimum, "text"),
        (ultralytics, "sound"),
        (piper, "text"),
        (openwakeword, "image"),
        (magika, "image"),
        (kokoro, "text"),
        (a_loop_of_tensors, "sound"),
        (bound_tensors, "image"),
        (a_server, "image"),
    ],
)
def test_a_program_computes_the_same_by_both(files: Mapping[str, Small], pattern: Pattern, model: str) -> None:
    expected = pattern(onnxruntime.InferenceSession, str(files[model].model))
    found = pattern(fractune.InferenceSession, str(files[model].bundle))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        if not isinstance(theirs, np.ndarray | np.generic):
            assert mine == theirs
            continue
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-5)
