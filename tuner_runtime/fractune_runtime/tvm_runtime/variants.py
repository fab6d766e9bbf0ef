"""The variants of a bundle: their code in memory, ready to run; and the bundle's inputs and outputs: what is checked of
them, and memory for them that stays.

A variant without control flow runs by its plan (`arena.py`), any other by TVM's virtual machine.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType
from typing import Any

from fractune_core.errors import BadBundle, BadRequest, first_line, shortened
from fractune_core.files.bundles import Bundle
from fractune_core.files.manifests import MAIN, MAIN_CACHED, MAIN_LAST
from fractune_core.files.plans import Plan
from fractune_runtime.tvm_runtime import tensors
from fractune_runtime.tvm_runtime.arena import Planned, check_parameters, entry_of, read_plan
from fractune_runtime.tvm_runtime.runtime import CPU, Weights, aligned_bytes, copy_tensor, tvm_function
from fractune_runtime.tvm_runtime.tensors import Array, CacheRows, TensorSpec

_MOST_CHARACTERS = 40
"""of a constant's numbers in a message"""


class Interface:
    """The specifications of a bundle's manifest."""

    def __init__(self, bundle: Bundle) -> None:
        self.inputs = tensors.input_specs(bundle.manifest)
        self.outputs = tensors.specs_of(bundle.manifest["outputs"])
        self._name = bundle.name
        self._constants: Mapping[str, Any] = bundle.manifest.get("constants", {})

    def check_constants(self, inputs: Any) -> None:
        """Raises BadRequest for an input of the model's file that the bundle does not have any more."""
        for name, numbers in self._constants.items():
            if isinstance(inputs, Mapping) and name in inputs:
                raise BadRequest(
                    f"input '{name}' was made a constant ({shortened(numbers, _MOST_CHARACTERS)}) when the model was "
                    "tuned; leave it out"
                )

    def check_outputs(self, outputs: Sequence[Any]) -> None:
        """Raises BadBundle unless the code gives outputs of the manifest's shapes."""
        shapes = [tuple(output.shape) for output in outputs]
        if len(shapes) != len(self.outputs):
            raise BadBundle(
                f"{self._name}: its code gives {len(shapes)} outputs, and its manifest names "
                f"{len(self.outputs)}; make the bundle again"
            )
        for spec, shape in zip(self.outputs, shapes, strict=True):
            if not spec.has_shape(shape):
                raise BadBundle(
                    f"{self._name}: its code gives the output '{spec.name}' the shape {list(shape)}, and its "
                    f"manifest {list(spec.shape)}; make the bundle again"
                )


def padded(specs: Sequence[TensorSpec], inputs: Mapping[str, Any], pad: Mapping[str, float]) -> dict[str, Array]:
    """The inputs with the shapes of `specs`: what is missing at the end of an axis is the input's number in `pad`, else
    0. Raises BadRequest for inputs of other types, and for those that do not lie in memory of the CPU.
    """
    made = {}
    for spec, given in zip(specs, tensors.open_arrays(specs, inputs), strict=True):
        whole = tensors.array_of(spec)
        whole[...] = pad.get(spec.name, 0)
        whole[tuple(map(slice, given.shape))] = given
        made[spec.name] = whole
    return made


def check_pad(specs: Sequence[TensorSpec], pad: Mapping[str, float]) -> None:
    """Raises BadRequest for a number that the type of its input cannot hold."""
    import numpy as np

    for spec in specs:
        number, dtype = pad.get(spec.name, 0), tensors.numpy_dtype(spec.dtype)
        try:
            with np.errstate(over="ignore"):
                held = np.array(number).astype(dtype) if dtype.kind not in "iub" else np.array(number, dtype)
            fits = bool(np.isfinite(held.astype("float64"))) and (dtype.kind not in "iub" or float(held) == number)
        except OverflowError:
            fits = False
        if not fits:
            raise BadRequest(f"--pad {spec.name}={number:g}: the input is of the type {spec.dtype}; give such a number")


class Slots:
    """`names` by slot, None for an empty slot; no slots for a model that is not fused. `specs` are those of all
    slots.
    """

    def __init__(self, model: str, names: Sequence[str | None], specs: Sequence[TensorSpec]) -> None:
        self._model = model
        self.names = tuple(names)
        self._specs = list(specs)
        self._of_one = [replace(spec, shape=spec.shape[1:]) for spec in specs] if self.names else []
        self._counting = threading.Lock()
        self._runs = self._requests = 0

    def stacked(self, requests: Mapping[int, Mapping[str, Any]]) -> dict[str, Array]:
        """Inputs of all slots, zeros in slots without a request. Raises BadRequest."""
        self._check(requests)
        given = {slot: tensors.as_arrays(self._of_one, inputs) for slot, inputs in requests.items()}
        return {spec.name: self._stacked(spec, given) for spec in self._specs}

    def count(self, requests: int) -> None:
        """Count a run for this many requests."""
        with self._counting:
            self._runs += 1
            self._requests += requests

    @property
    def occupancy(self) -> float:
        return self._requests / (self._runs * len(self.names)) if self._runs else 0.0

    def _check(self, requests: Mapping[Any, Any]) -> None:
        if not self.names:
            raise BadRequest(f"{self._model} is not a fused model, and has no slots; leave the slot out")
        if not requests:
            raise BadRequest("no slot is requested; give inputs for at least one")
        for slot in requests:
            if not isinstance(slot, int) or not 0 <= slot < len(self.names):
                raise BadRequest(f"slot {slot!r}: {self._model} has the slots 0 to {len(self.names) - 1}")
            if self.names[slot] is None:
                filled = ", ".join(f"{number} ({name})" for number, name in enumerate(self.names) if name is not None)
                raise BadRequest(f"slot {slot} of {self._model} is empty; it has {filled}")

    def _stacked(self, spec: TensorSpec, given: Mapping[int, Mapping[str, Array]]) -> Array:
        shape = [dim for dim in spec.shape if dim is not None]
        dtype = tensors.numpy_dtype(spec.dtype)
        whole: Array = aligned_bytes(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        for slot in range(len(self.names)):
            whole[slot] = given[slot][spec.name] if slot in given else 0
        return whole


class Bound:
    """A model with memory for its inputs and outputs, by `Model.bind`. Write into `inputs`, call `run`, and read
    `outputs`, which the next run overwrites. It holds the model and the arrays.

    Runs of one model come one at a time, in any thread. Threads that use the same arrays must agree on turns: each
    thread better has a `Bound` of its own. After `rematch` it runs the newly chosen variant.
    """

    inputs: Mapping[str, Array]
    """the arrays by name; their contents may change between runs"""
    outputs: Mapping[str, Array]
    """the arrays by name, as the last run has left them"""

    run: Callable[[], None]
    """compute the outputs from the present contents of the inputs"""

    def __init__(self, memory: BoundMemory, run: Callable[[], None]) -> None:
        self._memory = memory
        self.run = run
        self.inputs = MappingProxyType(memory.inputs)
        self.outputs = MappingProxyType(memory.outputs)


class BoundMemory:
    """Arrays for all inputs and outputs; those that are not given are made. It holds them, so that none is freed.

    Raises BadRequest for an array of another type or shape, in memory that compiled code cannot use in place, or that
    overlaps an output. Raises it also for an output whose shape depends on the data.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        given_inputs: Mapping[str, Any] | None,
        outputs: Sequence[TensorSpec],
        given_outputs: Mapping[str, Any] | None,
    ) -> None:
        for spec in outputs:
            if None in spec.shape:
                raise BadRequest(f"output {spec} has a shape that depends on the data; it cannot be bound: use run")
        takes = _given("input", inputs, given_inputs, "takes")
        gives = _given("output", outputs, given_outputs, "gives")
        self.arguments = [tensors.as_tensor(spec.name, takes[spec.name]) for spec in inputs]
        self.results = [tensors.as_tensor(spec.name, gives[spec.name]) for spec in outputs]
        names = [(f"input '{spec.name}'", tensor) for spec, tensor in zip(inputs, self.arguments, strict=True)]
        written = [(f"output '{spec.name}'", tensor) for spec, tensor in zip(outputs, self.results, strict=True)]
        _check_apart(names, written)
        self.inputs = {name: _array(value) for name, value in takes.items()}
        self.outputs = {name: _array(value) for name, value in gives.items()}
        self._held = [reference for value in (*takes.values(), *gives.values()) for reference in _holds(value)]


def _given(kind: str, specs: Sequence[TensorSpec], given: Mapping[str, Any] | None, verb: str) -> dict[str, Any]:
    """An array, or a tensor over memory of another library, for each of `specs`."""
    if not isinstance(given, Mapping | None):
        raise BadRequest(f"bind: {type(given).__name__} is not a mapping; give arrays by name, or none")
    values = {name: tensors.readable(f"{kind} '{name}'", value, None) for name, value in (given or {}).items()}
    named = [spec for spec in specs if spec.name in values]
    tensors.check_tensors(named if len(named) == len(values) else specs, values, verb)
    for name, value in values.items():
        found = tensors.obstacles(value)
        if found:
            raise BadRequest(
                f"bind: {kind} '{name}' cannot be used in place: its memory {' and '.join(found)}; leave it out, and "
                "bind makes an array"
            )
    return {spec.name: values[spec.name] if spec.name in values else tensors.array_of(spec) for spec in specs}


def _check_apart(inputs: Sequence[tuple[str, Any]], outputs: Sequence[tuple[str, Any]]) -> None:
    """Inputs may share memory with each other, but code may write an output before it has read all inputs."""
    pairs = [*combinations(outputs, 2), *((one, another) for one in inputs for another in outputs)]
    for (name, tensor), (other_name, other) in pairs:
        begin, other_begin = tensor.data_ptr(), other.data_ptr()
        if begin < other_begin + _bytes(other) and other_begin < begin + _bytes(tensor):
            raise BadRequest(f"{name} and {other_name} lie in the same memory; give each an array of its own")


def _bytes(tensor: Any) -> int:
    return int(tensors.as_array(tensor).nbytes)


def _array(value: Any) -> Array:
    array: Array = value if hasattr(value, "ctypes") else tensors.as_array(value)
    return array


def _holds(value: Any) -> Any:
    """Weak references to a NumPy array and those that it is a view of: NumPy does not resize an array that has one, so
    its memory stays where it is.
    """
    while hasattr(value, "ctypes"):
        yield weakref.ref(value)
        value = value.base


_POOLED_ALLOCATOR = 2
"""TVM's number for it"""
MISFITS = (RuntimeError, ValueError, TypeError, AttributeError)
"""TVM's exceptions for a file that is not code, and for tensors that the code does not take"""

Entry = Callable[..., Any]
"""a function of compiled code"""


class Called:
    """A variant that is one function: it takes inputs and weights, and returns the outputs in memory of their own."""

    def __init__(
        self, main: Entry, weights: Sequence[Any] = (), instrument: Callable[[Any], None] | None = None
    ) -> None:
        self.main = main
        self.weights = weights
        self.cached: Variant | None = None
        """as the variant, with buffers of the caller for the caches, and without these among its outputs"""
        self.last: Planned | None = None
        """as of `Planned`"""
        self.instrument = instrument
        """has TVM's virtual machine call a function before and after each call that it makes; None stops it"""

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        return tensors.flat(self.main(*arguments, *self.weights))

    def held(self, arguments: Sequence[Any]) -> list[Array]:
        return list(map(tensors.as_array, self.run(arguments)))

    def bound(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., None]:
        def run(first: int = 0, _token: int = 0) -> None:
            placed = [each.at(first) if isinstance(each, CacheRows) else each for each in arguments]
            for made, output in zip(self.run(placed), outputs, strict=True):
                copy_tensor(made, output)

        return run


Variant = Called | Planned
"""No two threads may run a variant at the same time. Each has

- `run`: the outputs as tensors, for inputs;
- `held`: the same as arrays, which the next run may overwrite;
- `bound`: a function that computes the outputs in given tensors, from what is then in the inputs. For `cached` it takes
  the number of the row with which each buffer begins.
"""


def load_code(
    objects: Sequence[bytes],
    weights: Sequence[Any],
    devices: Sequence[tuple[int, int]] = (CPU,),
    within: Callable[[Entry], Entry] = lambda entry: entry,
) -> tuple[Variant, Plan]:
    """The variant in these object files, and its plan. Its entry runs as `within` makes it. `devices`: the device of
    the tensors first, the CPU last. For other files TVM raises exceptions of any kind.
    """
    import tvm_ffi_orcjit

    # The session's own `load_module` requests the C++ compiler's runtime library first; C code needs none.
    session = tvm_ffi_orcjit.default_session()
    module = tvm_function("tvm_ffi_orcjit.SessionLoadModule")(session, list(objects), "", None, None)
    plan = read_plan(module, MAIN)
    if plan is None:
        raise ValueError("it has no plan")
    machine = _machine(module, devices)
    if machine is None:
        planned = _planned(module, MAIN, plan, weights, within)
        if (of_cached := read_plan(module, MAIN_CACHED)) is not None:
            planned.cached = _planned(module, MAIN_CACHED, of_cached, weights, within)
            if (of_last := read_plan(module, MAIN_LAST)) is not None:
                planned.cached.last = _planned(module, MAIN_LAST, of_last, weights, within)
        return planned, plan
    loaded = Called(within(machine[MAIN]), weights, machine["set_instrument"])
    if (cached := entry_of(machine, MAIN_CACHED)) is not None:
        loaded.cached = Called(within(cached), weights)
    return loaded, plan


def _planned(module: Any, name: str, plan: Plan, weights: Sequence[Any], within: Callable[[Entry], Entry]) -> Planned:
    entry = entry_of(module, name)
    if entry is None:
        raise ValueError(f"it has no entry '{name}'")
    return Planned(within(entry), plan, weights)


def _machine(module: Any, devices: Sequence[tuple[int, int]]) -> Any:
    """TVM's virtual machine for the bytecode of a module; None if the module has none."""
    load = entry_of(module, "vm_load_executable")
    if load is None:
        return None
    machine = load()
    machine["vm_initialization"](*(number for device in devices for number in (*device, _POOLED_ALLOCATOR)))
    return machine


def load_variant(
    bundle: Bundle,
    variant: str,
    weights: Weights,
    devices: Sequence[tuple[int, int]] = (CPU,),
    within: Callable[[Entry], Entry] = lambda entry: entry,
) -> Variant:
    """Load a variant, as `load_code`. Raises BadBundle for a missing variant, for code that cannot be loaded, and for
    code that takes or gives other tensors than the manifest says.
    """
    objects, own = bundle.objects(variant), weights.of(variant)
    inputs = len(bundle.manifest["inputs"])
    try:
        loaded, plan = load_code(objects, own, devices, within)
    except MISFITS as error:
        raise BadBundle(
            f"{bundle.name}: the code of the variant '{variant}' cannot be loaded ({first_line(error)}); "
            "make the bundle again"
        ) from error
    takes = len(plan.parameters)
    if takes != inputs + len(own):
        raise BadBundle(
            f"{bundle.name}: the code of the variant '{variant}' takes {takes} tensors, and its manifest names "
            f"{inputs} inputs and {len(own)} weights; make the bundle again"
        )
    interface = Interface(bundle)
    if isinstance(loaded, Planned):
        interface.check_outputs(plan.outputs)
    try:
        if isinstance(loaded, Called):
            check_parameters(plan, [*interface.inputs, *own])
        else:
            loaded.check(interface.inputs, interface.outputs)
            if isinstance(loaded.cached, Planned):
                inputs_of_cached, outputs = with_buffers(bundle, interface)
                loaded.cached.check(inputs_of_cached, outputs)
                if loaded.cached.last is not None:
                    loaded.cached.last.check(inputs_of_cached, of_last_token(loaded.cached.last, outputs))
    except ValueError as error:
        raise misfit(bundle, error) from error
    return loaded


def with_buffers(bundle: Bundle, interface: Interface) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """The inputs and the outputs of the entry for caches: a cache's input has the rows of its output, which is left
    out.
    """
    caches = bundle.manifest.get("caches", [])
    behind = {spec.name: spec for spec in interface.outputs}
    shapes = {each["input"]: behind[each["output"]].shape for each in caches}
    inputs = [replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in interface.inputs]
    written = {each["output"] for each in caches}
    return inputs, [spec for spec in interface.outputs if spec.name not in written]


def of_last_token(variant: Planned, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The outputs of an entry for one token, by those of all tokens: one of them has an axis of one token."""
    shapes = [each.shape for each in variant.plan.outputs]
    if len(shapes) != len(outputs):
        return list(outputs)
    of_one = [(*each.shape[:1], 1, *each.shape[2:]) for each in outputs]
    return [
        replace(spec, shape=one) if shape == one else spec
        for spec, shape, one in zip(outputs, shapes, of_one, strict=True)
    ]


def misfit(bundle: Bundle, error: Exception) -> BadBundle:
    """The error of a bundle if its code raised one of MISFITS for inputs that its manifest requests."""
    return BadBundle(
        f"{bundle.name}: its code does not take these inputs, or the weights that its manifest names "
        f"({first_line(error)}); give other inputs, or make the bundle again"
    )
