"""Where a bundle runs: on the CPU, or on a GPU. What differs between the two is behind one contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fractune.inference.cpu.backend import OnCpu
from fractune.inference.cpu.share import ShareHere
from fractune.inference.gpu.backend import OnGpu
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune_core.errors import BadBundle
from fractune_core.files.bundles import Bundle
from fractune_core.shares import Share

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


class Backend(Protocol):
    """A bundle's weights where it runs, and how to run its variants there."""

    def look(self) -> ShareHere:
        """The share that the process is under now. Raises ShareUnavailable when it does not hold the one asked for."""
        ...

    def load_main(self, variant: str) -> Callable[..., Any]:
        """The entry of a variant, which has its weights. Raises BadBundle when there is none of this name."""
        ...

    def arguments(self, specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[Any]:
        """The inputs as tensors, in the order of `specs`. Raises BadRequest. Any thread may call it."""
        ...

    def run(self, main: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
        """The outputs, complete, where the model left them. On the thread of the model, one call at a time."""
        ...

    def placed(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments where `run` need not copy them."""
        ...

    def array(self, output: Any) -> Array:
        """An output as an array of its own."""
        ...


def backend_for(bundle: Bundle, share: Share | None) -> Backend:
    """Where the bundle runs, under `share` (None = whatever the process is under).

    Raises BadBundle when it cannot run on this machine, BadRequest or ShareUnavailable for the share, FractuneError
    when what it needs is not installed.
    """
    kind = bundle.manifest["device"]["kind"]
    if kind == "cpu":
        return OnCpu(bundle, share)
    if kind == "cuda":
        return OnGpu(bundle, share)
    raise BadBundle(f"{bundle.name} is for a '{kind}' device, of which this version knows nothing; upgrade fractune")
