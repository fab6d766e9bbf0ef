"""The variants of a bundle: their code in memory, ready to run.

A variant without control flow runs by its plan (`arena.py`), any other by TVM's virtual machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fractune_core.errors import BadBundle, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.files.manifests import MAIN, MAIN_CACHED, MAIN_PLAN
from fractune_runtime.tvm_runtime.arena import Planned, entry_of, read_plan
from fractune_runtime.tvm_runtime.interface import Interface
from fractune_runtime.tvm_runtime.runtime import CPU, Weights, copy_tensor, tvm_function
from fractune_runtime.tvm_runtime.tensors import as_array, flat

if TYPE_CHECKING:
    from fractune_runtime.tvm_runtime.tensors import Array

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
        self.cached: Called | None = None
        """as the variant, with buffers of the caller for the caches, and without these among its outputs"""
        self.instrument = instrument
        """has TVM's virtual machine call a function before and after each call that it makes; None stops it"""

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        return flat(self.main(*arguments, *self.weights))

    def held(self, arguments: Sequence[Any]) -> list[Array]:
        return list(map(as_array, self.run(arguments)))

    def bound(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        def run() -> None:
            for made, output in zip(self.run(arguments), outputs, strict=True):
                copy_tensor(made, output)

        return run


Variant = Called | Planned
"""No two threads may run a variant at the same time. Each has

- `run`: the outputs as tensors, for inputs;
- `held`: the same as arrays, which the next run may overwrite;
- `bound`: a function that computes the outputs in given tensors, from what is then in the inputs.
"""


def load_code(
    objects: Sequence[bytes],
    weights: Sequence[Any],
    devices: Sequence[tuple[int, int]] = (CPU,),
    within: Callable[[Entry], Entry] = lambda entry: entry,
) -> tuple[Variant, int]:
    """The variant in these object files, and the number of inputs and weights that it takes. Its entry runs as
    `within` makes it. `devices`: the device of the tensors first, the CPU last. For other files TVM raises exceptions
    of any kind.
    """
    import tvm_ffi_orcjit

    # The session's own `load_module` requests the C++ compiler's runtime library first; C code needs none.
    session = tvm_ffi_orcjit.default_session()
    module = tvm_function("tvm_ffi_orcjit.SessionLoadModule")(session, list(objects), "", None, None)
    loaded: Variant
    machine = _machine(module, devices)
    plan, main = read_plan(module, MAIN_PLAN), entry_of(module, MAIN)
    if plan is not None and main is not None:
        loaded, takes = Planned(within(main), plan, weights), len(plan.parameters)
    elif machine is not None:
        loaded = Called(within(machine[MAIN]), weights, machine["set_instrument"])
        takes = int(machine["get_function_arity"](MAIN))
    else:
        raise ValueError("it has no plan, and no bytecode")
    if machine is not None and (cached := entry_of(machine, MAIN_CACHED)) is not None:
        loaded.cached = Called(within(cached), weights)
    return loaded, takes


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
        loaded, takes = load_code(objects, own, devices, within)
    except MISFITS as error:
        raise BadBundle(
            f"{bundle.name}: the code of the variant '{variant}' cannot be loaded ({first_line(error)}); "
            "make the bundle again"
        ) from error
    if takes != inputs + len(own):
        raise BadBundle(
            f"{bundle.name}: the code of the variant '{variant}' takes {takes} tensors, and its manifest names "
            f"{inputs} inputs and {len(own)} weights; make the bundle again"
        )
    if isinstance(loaded, Planned):
        interface = Interface(bundle)
        interface.check_outputs(loaded.plan.outputs)
        try:
            loaded.check(interface.inputs, interface.outputs)
        except ValueError as error:
            raise misfit(bundle, error) from error
    return loaded


def misfit(bundle: Bundle, error: Exception) -> BadBundle:
    """The error of a bundle if its code raised one of MISFITS for inputs that its manifest requests."""
    return BadBundle(
        f"{bundle.name}: its code does not take these inputs, or the weights that its manifest names "
        f"({first_line(error)}); give other inputs, or make the bundle again"
    )
