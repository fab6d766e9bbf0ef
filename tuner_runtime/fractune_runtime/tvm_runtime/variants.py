"""The variants of a bundle: their code in memory, ready to run.

A variant without control flow runs by its plan (`arena.py`), any other by TVM's virtual machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fractune_core.errors import BadBundle, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.files.manifests import MAIN, MAIN_CACHED, MAIN_LAST
from fractune_core.files.plans import Plan
from fractune_runtime.tvm_runtime.arena import Planned, check_parameters, entry_of, read_plan
from fractune_runtime.tvm_runtime.interface import Interface
from fractune_runtime.tvm_runtime.runtime import CPU, Weights, copy_tensor, tvm_function
from fractune_runtime.tvm_runtime.tensors import Array, CacheRows, TensorSpec, as_array, flat

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
        return flat(self.main(*arguments, *self.weights))

    def held(self, arguments: Sequence[Any]) -> list[Array]:
        return list(map(as_array, self.run(arguments)))

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
