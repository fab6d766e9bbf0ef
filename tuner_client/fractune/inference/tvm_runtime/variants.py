"""A variant of a bundle as functions of its inputs: code, weights and manifest must fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fractune.inference.tvm_runtime.runtime import CPU, load_entries
from fractune.inference.tvm_runtime.weights import Weights
from fractune_core.errors import BadBundle, first_line
from fractune_core.files.bundles import Bundle

MISFITS = (RuntimeError, ValueError, TypeError, AttributeError)
"""TVM's exceptions for a file that is not code, and for tensors that the code does not take"""


@dataclass(frozen=True)
class Variant:
    """A variant with its weights. No two threads may call its functions at the same time."""

    main: Callable[..., Any]
    """returns its outputs, for the inputs"""
    into: Callable[[Sequence[Any], Sequence[Any]], None] | None
    """computes the outputs in given tensors, for the inputs and these; None where the code cannot"""


def load_variant(
    bundle: Bundle, variant: str, weights: Weights, devices: Sequence[tuple[int, int]] = (CPU,)
) -> Variant:
    """Load a variant. `devices`: the device of the tensors first, the CPU last. Raises BadBundle for a missing variant,
    for code that cannot be loaded, and for more or fewer inputs and weights than the code takes.
    """
    objects, own = bundle.objects(variant), weights.of(variant)
    inputs = len(bundle.manifest["inputs"])
    try:
        entries = load_entries(objects, devices)
    except MISFITS as error:
        raise BadBundle(
            f"{bundle.name}: the code of the variant '{variant}' cannot be loaded ({first_line(error)}); "
            "make the bundle again"
        ) from error
    if entries.takes != inputs + len(own):
        raise BadBundle(
            f"{bundle.name}: the code of the variant '{variant}' takes {entries.takes} tensors, and its manifest names "
            f"{inputs} inputs and {len(own)} weights; make the bundle again"
        )
    main, into = entries.main, entries.into
    return Variant(
        lambda *tensors: main(*tensors, *own),
        None if into is None else lambda inputs, outputs: into(*inputs, *own, *outputs),
    )


def misfit(bundle: Bundle, error: Exception) -> BadBundle:
    """The error of a bundle if its code raised one of MISFITS for inputs that its manifest requests."""
    return BadBundle(
        f"{bundle.name}: its code does not take these inputs, or the weights that its manifest names "
        f"({first_line(error)}); give other inputs, or make the bundle again"
    )
