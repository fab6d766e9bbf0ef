"""A bundle on an NVIDIA GPU. Weights lie there once, and inputs are copied to it unless they lie there already. All
work is on CUDA's default stream, so copies and kernels run in order; `run` waits for the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fractune.inference.cpu.processor import check_host_code
from fractune.inference.cpu.share import ShareHere, share_here
from fractune.inference.gpu import driver
from fractune.inference.gpu.driver import GpuHere, NoDriver
from fractune.inference.gpu.mps import join_daemon
from fractune.inference.gpu.share import check_gpu, check_held, gpu_share_here
from fractune.inference.tvm_runtime import runtime, tensors
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune.inference.tvm_runtime.variants import Variant, load_variant, misfit
from fractune.inference.tvm_runtime.weights import Weights
from fractune_core.errors import BadBundle, FractuneError, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.shares import Share

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

_LOST = "after an error of a kernel CUDA refuses this process all further work: start it again"


class OnGpu:
    """See `Backend`. Raises BadBundle, BadRequest, ShareUnavailable, FractuneError when a part is not installed."""

    keeps_inputs = False
    device = "cuda:0"
    """the first GPU that CUDA shows this process"""
    kind = (2, 0)
    """the same by DLPack's numbers"""

    def __init__(self, bundle: Bundle, share: Share | None, weights: Weights | None = None) -> None:
        self._bundle = bundle
        check_host_code(bundle)
        self._whole_sms = int(bundle.manifest["device"]["units"])
        self._share = share
        join_daemon(share)
        self._gpu = _gpu_for(bundle)
        check_gpu(bundle, self._gpu)
        self.look()
        self._load_runtime()
        self.weights = Weights(bundle, self.placed) if weights is None else weights.of_member(bundle)
        self._inputs: dict[int, Any] = {}
        """memory on the GPU for inputs from elsewhere, by position"""

    def look(self) -> ShareHere:
        here = gpu_share_here(self._gpu, self._whole_sms, share_here().cpus)
        if self._share is not None:
            check_held(self._share, here, self._whole_sms)
        return here

    def limits(self) -> tuple[Any, ...]:
        return ()  # a process enters its share of a GPU before it uses the GPU, and keeps it

    def load_variant(self, variant: str) -> Variant:
        return load_variant(self._bundle, variant, self.weights, (self.kind, runtime.CPU))

    def arguments(self, specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[Any]:
        return tensors.as_arguments(specs, inputs, self.kind)

    def run(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        try:
            there = [self._input(at, argument) for at, argument in enumerate(arguments)]
            outputs = tensors.flat(variant.main(*there))
            runtime.synchronise(self.device)
        except RuntimeError as error:
            raise FractuneError(f"the model failed on the GPU ({first_line(error)}); {_LOST}") from error
        except (ValueError, TypeError) as error:
            raise misfit(self._bundle, error) from error
        return outputs

    def run_into(self, variant: Variant, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        for made, output in zip(self.run(variant, arguments), outputs, strict=True):
            self._copy(made, output)
        runtime.synchronise(self.device)

    def placed(self, arguments: Sequence[Any]) -> list[Any]:
        there = [self._copy(argument, self._room_for(argument)) for argument in arguments]
        runtime.synchronise(self.device)
        return there

    def array(self, output: Any) -> Array:
        array, here = tensors.empty_array(output)
        self._copy(output, here)
        runtime.synchronise(self.device)
        return array

    def _load_runtime(self) -> None:
        runtime.load_cuda_runtime()

    def _input(self, at: int, argument: Any) -> Any:
        """The argument on the GPU, in the memory of this input there unless it lies there already."""
        if tensors.device_of(argument) == self.kind:
            return argument
        if at not in self._inputs:
            self._inputs[at] = self._room_for(argument)
        return self._copy(argument, self._inputs[at])

    def _room_for(self, tensor: Any) -> Any:
        return runtime.empty_tensor(tuple(tensor.shape), str(tensor.dtype), self.device)

    def _copy(self, source: Any, target: Any) -> Any:
        runtime.copy_tensor(source, target)
        return target


def _gpu_for(bundle: Bundle) -> GpuHere:
    try:
        return driver.look_at_gpu()
    except NoDriver as error:
        isa = bundle.manifest["device"]["isa"]
        raise BadBundle(f"{bundle.name} is for a GPU ({isa}): {error}, or tune the model for this CPU") from error
