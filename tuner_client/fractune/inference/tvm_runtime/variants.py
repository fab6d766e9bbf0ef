"""A variant of a bundle as a function of its inputs: code, weights and manifest must fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fractune.inference.tvm_runtime.runtime import CPU, load_main
from fractune.inference.tvm_runtime.weights import Weights
from fractune_core.errors import BadBundle, first_line
from fractune_core.files.bundles import Bundle

MISFITS = (RuntimeError, ValueError, TypeError, AttributeError)
"""TVM's exceptions for a file that is not code, and for tensors that the code does not take"""


def load_variant(
    bundle: Bundle, variant: str, weights: Weights, devices: Sequence[tuple[int, int]] = (CPU,)
) -> Callable[..., Any]:
    """The variant's `main` with its weights; it takes the inputs. No two threads may call it at the same time.
    `devices`: the device of the tensors first, the CPU last. Raises BadBundle for a missing variant, for code that
    cannot be loaded, and for more or fewer inputs and weights than the code takes.
    """
    objects, own = bundle.objects(variant), weights.of(variant)
    inputs = len(bundle.manifest["inputs"])
    try:
        main, takes = load_main(objects, devices)
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
    return lambda *tensors: main(*tensors, *own)


def misfit(bundle: Bundle, error: Exception) -> BadBundle:
    """The error of a bundle if its code raised one of MISFITS for inputs that its manifest requests."""
    return BadBundle(
        f"{bundle.name}: its code does not take these inputs, or the weights that its manifest names "
        f"({first_line(error)}); give other inputs, or make the bundle again"
    )
