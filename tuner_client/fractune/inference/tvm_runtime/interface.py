"""The inputs and outputs of a bundle, and what is checked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fractune.inference.tvm_runtime.tensors import specs_of
from fractune_core.errors import BadBundle, BadRequest, shortened
from fractune_core.files.bundles import Bundle

_MOST_CHARACTERS = 40
"""of a constant's numbers in a message"""


class Interface:
    """The specifications of a bundle's manifest."""

    def __init__(self, bundle: Bundle) -> None:
        self.inputs = specs_of(bundle.manifest["inputs"])
        self.outputs = specs_of(bundle.manifest["outputs"])
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
