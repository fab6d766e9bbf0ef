"""A model file in ONNX Runtime or OpenVINO, run on arrays in place: as the peer of a bundle, or serving a share of it.

By default ONNX Runtime's products of unsigned by signed bytes saturate where the processor has no VNNI. Products with
weights of 4 bits round their data to 8 bits: behind a DequantizeLinear always, in a MatMulNBits if the node has
`accuracy_level=4`. An exact session computes all these products as they are defined, so it rounds in the last case
alone: the model allows it there, and a bundle rounds too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from fractune_core.errors import BadModel, FractuneError, first_line
from fractune_core.files.buckets import input_shapes
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import EXACT_ONNX_RUNTIME, MODEL, ONLY_ONNX, ONNX_RUNTIME, OPENVINO, Runtime
from fractune_core.model_inputs import constants_in, fitting_shape, parse_numbers, shapes_in
from fractune_runtime.tvm_runtime.drawing import accepted_integers, telling_ranges, typical_inputs
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec, as_array, as_tensor, numpy_dtype
from fractune_runtime.tvm_runtime.variants import Called

_DEFAULTS: Mapping[str, str] = MappingProxyType({})
_SETTINGS: dict[str, dict[str, str]] = {
    ONNX_RUNTIME: {"session.intra_op.allow_spinning": "0"},
    OPENVINO: {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"},
}
_EXACT: dict[str, dict[str, str]] = {ONNX_RUNTIME: EXACT_ONNX_RUNTIME, OPENVINO: {"EXECUTION_MODE_HINT": "ACCURACY"}}
"""By default ONNX Runtime's products of bytes may saturate; OpenVINO computes in bfloat16, and rounds data to 8 bits
where weights have 8 bits, also with INFERENCE_PRECISION_HINT=f32"""
_WEIGHTS_IN = "session.model_external_initializers_file_folder_path"
_QUANTIZING = (
    *("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM", "QAttention", "QGemm"),
    *("DequantizeLinear", "MatMulNBits"),
)
"""Operators that compute with quantized numbers, or make them"""
_OP_TYPE = 0x22
"""The field `op_type` of a node, as protobuf writes it: this byte, the length, the name"""
_OPERATORS = re.compile(b"|".join(re.escape(bytes([_OP_TYPE, len(name)]) + name.encode()) for name in _QUANTIZING))
_ROUNDING = re.compile(rb"(\x0a\x0eaccuracy_level\x18)[\x02\x03]")
"""The attribute of a MatMulNBits that lets it compute in half precision, as protobuf writes it: name and number. No
setting of a session overrides it."""
_ANY_ROUNDING = re.compile(rb"(\x0a\x0eaccuracy_level\x18)[\x02-\x04]")
"""as well as the attribute that lets it round its data to bytes"""
TYPES = {"float": "float32", "double": "float64"}
"""ONNX Runtime's names that differ from ours"""


def settings_of(runtime: str, *, exact: bool = True) -> dict[str, str]:
    """The settings of a session that serves, beside the number of threads. Threads do not spin while they wait: the
    share may serve others too. `exact`: all products as ONNX defines them.
    """
    return {**_SETTINGS[runtime], **(_EXACT[runtime] if exact else {})}


def stream_settings(threads: int, streams: int) -> dict[str, str]:
    """Of a model in OpenVINO whose streams answer requests side by side, each with so many threads."""
    hint = "LATENCY" if streams == 1 else "THROUGHPUT"
    return {"PERFORMANCE_HINT": hint, "NUM_STREAMS": str(streams), "INFERENCE_NUM_THREADS": str(threads * streams)}


def is_quantized(path: Path) -> bool:
    """Whether the ONNX file computes with quantized numbers."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _OPERATORS.search(data) is not None


def keep_forever(held: object) -> None:
    """For a forked child: the threads of its parent's sessions are not there, and whatever ends them waits for them.
    So the sessions stay, also when the interpreter ends, and the handlers of the libraries do not run after it.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    libc = ctypes.CDLL(None)
    libc.on_exit(libc["_exit"], None)  # called with the status, before the handlers that were registered earlier


class RuntimeMissing(FractuneError):
    """A runtime is not installed, or cannot be imported."""


@dataclass(frozen=True)
class OpenInput:
    """An input as the model file has it."""

    name: str
    dtype: str
    dims: list[int | str | None]
    """a name or None for an open dimension"""


class Session(ABC):
    """A loaded model. No two threads may call it at the same time."""

    name: str
    """of the file, for messages"""
    version: str
    input_names: list[str]
    output_names: list[str]
    refuses_outside = False
    """Whether it refuses an index outside of the axis"""

    @property
    @abstractmethod
    def inputs(self) -> list[OpenInput]: ...

    @abstractmethod
    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """The outputs in their order. Raises BadModel."""

    def random_feed(self, inputs: Mapping[str, Sequence[int]]) -> dict[str, Array]:
        """Random arrays that the model takes, with the shapes and constants of a job's `inputs`. Raises BadModel for an
        input that stays open, BadRequest for numbers that do not fit.
        """
        shapes = shapes_in(inputs)
        constants = self.constants(constants_in(inputs), shapes)
        specs = self.input_specs(shapes, constants)
        within = self.accepted_ranges(specs, lambda given: {**given, **constants})
        return {**typical_inputs(specs, within), **constants}

    def accepted_ranges(
        self, specs: Sequence[TensorSpec], feed_of: Callable[[dict[str, Array]], dict[str, Array]]
    ) -> dict[str, range]:
        """As `accepted_integers` and `telling_ranges`. A runtime that does not refuse an index outside of its axis
        shows no range of integers.
        """
        import numpy as np

        def run(inputs: dict[str, Array]) -> list[Array]:
            return [each.copy() for each in self.run(feed_of(inputs))]  # the next run may overwrite them

        def accepts(inputs: dict[str, Array]) -> list[Array]:
            run(inputs)
            return [np.zeros(1)]  # an index outside is an error; a NaN of the model's own says nothing

        return telling_ranges(specs, run, accepted_integers(specs, accepts) if self.refuses_outside else {})

    def constants(self, numbers: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
        """The inputs that are constants in the bundle (name -> numbers as text). `shapes` are for open dimensions of
        all inputs. Raises BadRequest for numbers that do not fit.
        """
        known = self._known(shapes)
        return {
            each.name: _constant(each, numbers[each.name], known[each.name])
            for each in self.inputs
            if each.name in numbers
        }

    def input_specs(self, shapes: Mapping[str, Sequence[int]], constants: Collection[str] = ()) -> list[TensorSpec]:
        """The inputs but the `constants`, with `shapes` for open ones. Raises BadModel for an input that stays open."""
        known = self._known(shapes)
        for each in self.inputs:
            if each.name not in constants and not all(isinstance(dim, int) for dim in known[each.name]):
                raise BadModel(
                    f"{self.name}: input '{each.name}' has the open shape {each.dims}; "
                    f"give it by --input {each.name}=1,3,224,224"
                )
        return [
            TensorSpec(each.name, each.dtype, tuple(known[each.name]))
            for each in self.inputs
            if each.name not in constants
        ]

    def _known(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        """The dimensions by input, as far as known: those with equal names have equal sizes."""
        sizes: dict[Any, Any] = {
            dim: size
            for each in self.inputs
            for dim, size in zip(each.dims, shapes.get(each.name, ()), strict=False)
            if isinstance(dim, str)
        }
        known: dict[str, list[Any]] = {each.name: [sizes.get(dim, dim) for dim in each.dims] for each in self.inputs}
        return {name: list(shapes.get(name) or dims) for name, dims in known.items()}


def _constant(each: OpenInput, numbers: str, known: Sequence[Any]) -> Array:
    import numpy as np

    dtype = numpy_dtype(each.dtype)
    given = np.asarray(parse_numbers(each.name, numbers, str(dtype)), dtype)
    shape = fitting_shape(each.name, len(given), [dim if isinstance(dim, int) else None for dim in known])
    return np.full(shape, given[0]) if len(given) == 1 else given.reshape(shape)


def open_session(
    runtime: str,
    model: bytes,
    name: str,
    threads: int,
    cpus: Sequence[int],
    settings: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
) -> Session:
    """A session of the runtime with `threads` threads on `cpus`. OpenVINO needs the `shapes` of the inputs.

    Raises BadModel if it cannot load the model, RuntimeMissing.
    """
    made: list[Session] = []
    failed: list[BaseException] = []

    def make() -> None:
        try:
            os.sched_setaffinity(0, cpus)  # of this thread; the runtime's threads inherit it
            if runtime == ONNX_RUNTIME:
                made.append(OnnxRuntimeSession(model, threads, settings, name=name))
            else:
                made.append(OpenVinoSession(model, threads, settings, name=name, shapes=shapes))
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


class OnnxRuntimeSession(Session):
    """An ONNX file, by its path or in bytes, with `threads` threads on the CPUs that this thread is confined to.

    `settings` are ONNX Runtime's own: by default those that users have. `name` is that of a file in bytes. `optimized`:
    with ONNX Runtime's changes of the graph. `arena`: freed memory is kept for later runs. Raises BadModel when ONNX
    Runtime cannot load it, RuntimeMissing.
    """

    refuses_outside = True

    def __init__(
        self,
        model: Path | bytes,
        threads: int,
        settings: Mapping[str, str] = _DEFAULTS,
        *,
        name: str = "",
        optimized: bool = True,
        arena: bool = True,
    ) -> None:
        try:
            from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions, __version__
        except Exception as error:  # a broken installation raises anything
            raise _missing("ONNX Runtime", "'fractune[onnxruntime]'", error) from error
        self.version = str(__version__)
        self.name = model.name if isinstance(model, Path) else name
        options = SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4  # it warns of old files on every start, and its errors are exceptions too
        options.enable_cpu_mem_arena = arena
        if not optimized:
            options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
        for key, value in {**settings, **ONLY_ONNX}.items():
            options.add_session_config_entry(key, value)
        source = str(model) if isinstance(model, Path) else model
        try:
            self._session: Any = InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common base
            raise _unloaded(self.name, "ONNX Runtime", first_line(error)) from error
        self.input_names = [str(node.name) for node in self._session.get_inputs()]
        self.output_names = [str(node.name) for node in self._session.get_outputs()]

    @classmethod
    def exact(
        cls,
        model: Path | bytes,
        threads: int,
        *,
        optimized: bool = True,
        arena: bool = True,
        rounds: bool = True,
        folder: Path | None = None,
    ) -> Self:
        """A reference: it computes products of quantized numbers as ONNX defines them. It `rounds` the data of those
        that `accuracy_level=4` lets round, or not. A `folder` has files with weights of a model in bytes.
        """
        name = model.name if isinstance(model, Path) else ""
        plain = _without_rounding(model, _ROUNDING if rounds else _ANY_ROUNDING)
        settings = {**EXACT_ONNX_RUNTIME, **({_WEIGHTS_IN: str(folder)} if folder else {})}
        return cls(plain, threads, settings, name=name, optimized=optimized, arena=arena)

    @property
    def inputs(self) -> list[OpenInput]:
        return [OpenInput(str(node.name), _dtype(node.type), node.shape) for node in self._session.get_inputs()]

    def run(self, feed: Mapping[str, Array], output_names: Sequence[str] | None = None) -> list[Array]:
        """The outputs in their order, or these alone. Raises BadModel."""
        try:
            outputs: list[Array] = self._session.run(output_names or self.output_names, feed)
        except Exception as error:
            raise BadModel(f"{self.name}: ONNX Runtime cannot run it ({first_line(error)})") from error
        return outputs


class OpenVinoSession(Session):
    """An ONNX file, by its path or in bytes, with `threads` threads. `settings` are OpenVINO's own, `shapes` those of
    inputs with open dimensions. `name` is that of a file in bytes.

    Raises BadModel when OpenVINO cannot load it, RuntimeMissing.
    """

    def __init__(
        self,
        model: Path | bytes,
        threads: int,
        settings: Mapping[str, str] = _DEFAULTS,
        *,
        name: str = "",
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        try:
            from openvino import Core, __version__
        except Exception as error:
            raise _missing("OpenVINO", "the package 'openvino'", error) from error
        self.version = str(__version__).partition("-")[0]
        self.name = model.name if isinstance(model, Path) else name
        core = Core()
        try:
            read = core.read_model(str(model) if isinstance(model, Path) else model)
            # It drops inputs that nothing reads.
            kept = {name for port in read.inputs for name in port.names}
            if fixed := {name: list(shape) for name, shape in shapes.items() if name in kept}:
                read.reshape(fixed)
            compiled = core.compile_model(read, "CPU", {**settings, "INFERENCE_NUM_THREADS": str(threads)})
        except Exception as error:  # its exceptions have no common base
            raise _unloaded(self.name, "OpenVINO", str(error).strip().rpartition("\n")[2]) from error
        self._compiled: Any = compiled
        self.input_names = list(map(_name_of, compiled.inputs))
        self.output_names = [next(iter(port.names), f"output{at}") for at, port in enumerate(compiled.outputs)]
        self._request: Any = compiled.create_infer_request()

    @property
    def inputs(self) -> list[OpenInput]:
        return [
            OpenInput(_name_of(port), str(port.element_type.to_dtype()), _dims(port.partial_shape))
            for port in self._compiled.inputs
        ]

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """The outputs in their order. Raises BadModel."""
        try:
            found = self._request.infer(dict(feed), share_inputs=True)
        except Exception as error:
            raise BadModel(f"{self.name}: OpenVINO cannot run it ({first_line(error)})") from error
        return [found[at] for at in range(len(self.output_names))]

    def streams(self, feed: Mapping[str, Array], count: int) -> list[Callable[[], Any]]:
        """Calls of one inference on these inputs, which may run side by side."""
        return [partial(self._compiled.create_infer_request().infer, dict(feed)) for _ in range(count)]


def _dtype(onnx_type: str) -> str:
    kind = str(onnx_type).removeprefix("tensor(").removesuffix(")")
    return TYPES.get(kind, kind)


def _name_of(port: Any) -> str:
    """The name of an input in the file. A reshaped input also has the name of the result, which may come first."""
    name = str(port.node.friendly_name)
    return name if name in port.names else str(port.any_name)


def _dims(shape: Any) -> list[int | str | None]:
    """None for an open dimension, and for all of an open number of them."""
    return [dim.get_length() if dim.is_static else None for dim in shape] if shape.rank.is_static else [None]


def _missing(runtime: str, package: str, error: Exception) -> RuntimeMissing:
    if isinstance(error, ModuleNotFoundError):
        return RuntimeMissing(f"{runtime} is not installed here; install {package}")
    return RuntimeMissing(f"{runtime} is installed here and cannot be imported ({first_line(error)}); install it again")


def _unloaded(name: str, runtime: str, why: str) -> BadModel:
    return BadModel(f"{name}: {runtime} cannot load it ({why}); give an ONNX file that it runs")


def _without_rounding(model: Path | bytes, rounding: re.Pattern[bytes]) -> Path | bytes:
    """The file for a session without this rounding: as given, or its bytes if they differ."""
    held = model.read_bytes() if isinstance(model, Path) else model
    data, changed = rounding.subn(lambda found: found[1] + b"\x01", held)
    return data if changed else model


def runtime_variant(bundle: Bundle, runtime: str, threads: int, cpus: Sequence[int]) -> Called:
    """The model in `runtime`, on so many threads of `cpus`. Raises BadBundle, BadModel, FractuneError if the runtime is
    not installed.
    """
    session, feed_of = held_session(bundle, runtime, threads, cpus, input_shapes(bundle.manifest))
    names = [each["name"] for each in bundle.manifest["inputs"]]

    def main(*arguments: Any) -> list[Any]:
        outputs = session.run(feed_of(dict(zip(names, map(as_array, arguments), strict=True))))
        return [as_tensor("output", output) for output in outputs]

    return Called(main)


def held_session(
    bundle: Bundle, runtime: str, threads: int, cpus: Sequence[int], shapes: Mapping[str, Sequence[int]]
) -> tuple[Session, Feeder]:
    """A session of the model file in the bundle, and what it takes for inputs of the bundle. Raises as
    `runtime_variant`.
    """
    settings = Runtime.from_json(bundle.manifest["runtimes"][runtime]).settings
    session = open_session(runtime, bundle.read(MODEL), bundle.name, threads, cpus, settings, shapes)
    return session, Feeder(bundle.manifest, session)


def open_shapes(specs: Sequence[TensorSpec]) -> dict[str, list[int]]:
    """The shapes of inputs as runtimes take them: -1 for an open dimension."""
    return {spec.name: [-1 if size is None else size for size in spec.shape] for spec in specs}


class Feeder:
    """Makes what a session takes of a bundle's inputs by name: the session's own names, with the bundle's constants.

    Inputs with equal names belong together. A runtime may have dropped an input that nothing reads; it is left out. If
    names differ, inputs belong together by position. Raises BadModel if there are other numbers of inputs or outputs.
    """

    def __init__(self, manifest: Mapping[str, Any], session: Session) -> None:
        self._session, self._numbers = session, manifest.get("constants", {})
        self._constant_shapes = manifest.get("constant_shapes", {})
        own = [each["name"] for each in manifest["inputs"]]
        theirs = [name for name in session.input_names if name not in self._numbers]
        if set(theirs) <= set(own):
            self._pairs = [(name, name) for name in theirs]
        elif len(theirs) == len(own):
            self._pairs = list(zip(theirs, own, strict=True))
        else:
            raise BadModel(f"the bundle has the inputs {', '.join(own)}, and {session.name} has {', '.join(theirs)}")
        if len(session.output_names) != (count := len(manifest["outputs"])):
            raise BadModel(f"the bundle has {count} outputs, and {session.name} has {len(session.output_names)}")

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises BadRequest for constants that do not fit these inputs."""
        feed = {theirs: inputs[own] for theirs, own in self._pairs}
        if not self._numbers:
            return feed
        shapes = {name: array.shape for name, array in feed.items()}
        return {**self._session.constants(self._numbers, {**shapes, **self._constant_shapes}), **feed}
