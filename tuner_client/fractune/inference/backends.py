"""The processor of a bundle: the CPU or a GPU. One contract hides the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fractune.inference.cpu.backend import OnCpu
from fractune.inference.cpu.share import ShareHere
from fractune.inference.gpu.backend import OnGpu
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune.inference.tvm_runtime.variants import Variant
from fractune.inference.tvm_runtime.weights import Weights
from fractune_core.errors import BadBundle
from fractune_core.files.bundles import Bundle
from fractune_core.shares import Share

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


class Backend(Protocol):
    """A bundle's weights on its processor, and the execution of its variants there."""

    weights: Weights
    keeps_inputs: bool
    """whether small inputs are better copied into memory that stays; a GPU has memory for them in `run`"""

    def look(self) -> ShareHere:
        """The share that the process is under now. Raises ShareUnavailable if it is not the requested share."""
        ...

    def limits(self) -> tuple[Any, ...]:
        """Differs from an earlier result if the share may have changed. Empty where the share stays as it is."""
        ...

    def load_variant(self, variant: str) -> Variant:
        """A variant with its weights. Raises BadBundle if no variant has this name."""
        ...

    def arguments(self, specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[Any]:
        """The inputs as tensors, in the order of `specs`. Raises BadRequest. Any thread may call it."""
        ...

    def run(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        """The complete outputs, in place. Call it on the thread of the model, one call at a time."""
        ...

    def run_into(self, variant: Variant, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        """As `run`, but the outputs are in the tensors `outputs` afterwards."""
        ...

    def placed(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments, placed so that `run` need not copy them."""
        ...

    def array(self, output: Any) -> Array:
        """An output as a separate array."""
        ...


def backend_for(
    bundle: Bundle, share: Share | None, weights: Weights | None = None, *, denormals: bool = False
) -> Backend:
    """The processor of the bundle, under `share` (None = the present share of the process). `weights` are those of
    another member of the bundle, which lie there already. `denormals`: a CPU computes with them, and does not take them
    as zero. Raises BadBundle when it cannot run on this machine, BadRequest or ShareUnavailable for the share,
    FractuneError when a required package is not installed.
    """
    kind = bundle.manifest["device"]["kind"]
    if kind == "cpu":
        return OnCpu(bundle, share, weights, denormals=denormals)
    if kind == "cuda":
        return OnGpu(bundle, share, weights)
    raise BadBundle(f"{bundle.name} is for a '{kind}' device, which this version does not support; upgrade fractune")
