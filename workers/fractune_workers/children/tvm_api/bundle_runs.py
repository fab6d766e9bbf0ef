"""The variants of a bundle, run on the processor of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from fractune_core.files.bundles import WEIGHTS, Bundle
from fractune_core.host.denormals import with_denormals
from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.processor import Processor
from fractune_workers.children.tvm_api.weights import unpack_weights


def load_variant(bundle: Bundle, name: str, weights: Sequence[Any], processor: Processor) -> Callable[..., Any]:
    """The variant's `main` on a virtual machine of its own, as a function of the inputs, without denormals. `weights`:
    all of the bundle.
    """
    own = [weights[place] for place in bundle.weights_of(name)]
    main = relax.VirtualMachine(load_objects(bundle.objects(name)), processor.device)["main"]
    return with_denormals(lambda *inputs: main(*inputs, *own), kept=False)


def weights_of(bundle: Bundle, processor: Processor) -> list[Any]:
    """All weights of the bundle, each variant's own among them."""
    return unpack_weights(bundle.read(WEIGHTS), bundle.manifest["weights"], processor.tensor)


def outputs_of(result: Any, processor: Processor) -> list[Any]:
    """The model's outputs as arrays, for one tensor or a (nested) tuple of tensors."""
    if hasattr(result, "numpy"):
        return [processor.read(result)]
    return [array for part in result for array in outputs_of(part, processor)]
