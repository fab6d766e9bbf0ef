"""Small networks in Relax, and what they compute."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from fractune_runtime.tvm_runtime.runtime import load_runtime
from fractune_runtime.tvm_runtime.variants import Variant, load_code
from tests.support.unoptimized import outputs_of

Array = npt.NDArray[np.float32]


class Network:
    """Builds a module with one function, its weights drawn at random."""

    def __init__(self, seed: int = 0) -> None:
        self.builder = relax.BlockBuilder()
        self.rng = np.random.default_rng(seed)

    def weight(self, *shape: int) -> Any:
        return relax.const(self.rng.standard_normal(shape).astype("float32"))

    def positive(self, *shape: int) -> Any:
        return relax.const((self.rng.random(shape) + 0.5).astype("float32"))

    def emit(self, value: Any) -> Any:
        return self.builder.emit(value)

    def conv(self, data: Any, out_channels: int, kernel: int = 3, *, groups: int = 1, **options: Any) -> Any:
        channels = int(data.ty.shape[1])
        weight = self.weight(out_channels, channels // groups, kernel, kernel)
        return self.emit(relax.op.nn.conv2d(data, weight, groups=groups, **options))


def network(shapes: Sequence[Sequence[int]], body: Callable[..., Any], seed: int = 0) -> tvm.IRModule:
    """`body(network, *inputs)` returns the output; the weights follow from `seed`."""
    made = Network(seed)
    inputs = [relax.Var(f"x{at}", relax.TensorType(list(shape), "float32")) for at, shape in enumerate(shapes)]
    with made.builder.function("main", inputs):
        with made.builder.dataflow():
            result = made.builder.emit_output(body(made, *inputs))
        made.builder.emit_func_output(result)
    return made.builder.get()


def inputs_of(mod: tvm.IRModule) -> list[Array]:
    """Random ones."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal([int(dim) for dim in param.ty.shape]).astype("float32") for param in mod["main"].params]


def loaded(objects: dict[str, bytes]) -> Variant:
    """A variant of a bundle, from its object files."""
    load_runtime()
    return load_code(list(objects.values()), [])[0]


def outputs(mod: tvm.IRModule, target: tvm.target.Target, inputs: Sequence[Array]) -> Array:
    """Of the module as it is, by TVM's default pipeline."""
    return outputs_of(mod, target, *inputs)[0]


def calls(mod: tvm.IRModule) -> list[str]:
    """What `main` calls, in order: an operator of Relax by its name, a TIR function by its own."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                name = str(getattr(binding.value.op, "name", ""))
                found.append(binding.value.args[0].name_hint if name == "relax.call_tir" else name)
    return found
