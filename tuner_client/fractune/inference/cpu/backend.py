"""A bundle on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fractune.inference.cpu import share
from fractune.inference.cpu.processor import check_processor
from fractune.inference.cpu.share import ShareHere
from fractune.inference.tvm_runtime import tensors
from fractune.inference.tvm_runtime.runtime import copy_tensor, load_runtime
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune.inference.tvm_runtime.variants import MISFITS, Variant, load_variant, misfit
from fractune.inference.tvm_runtime.weights import Weights
from fractune_core.errors import FractuneError, ShareUnavailable, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.host.denormals import with_denormals
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

_SHAPE_CHECK = "match_cast"
"""TVM's RuntimeError for a shape that the code does not take has this text. Other failures of a run, such as refused
memory, are RuntimeErrors as well."""


class OnCpu:
    """See `Backend`. Raises BadBundle, FractuneError, BadRequest for a share that cannot serve a model on a CPU."""

    keeps_inputs = True

    def __init__(
        self, bundle: Bundle, share: Share | None, weights: Weights | None = None, *, denormals: bool = False
    ) -> None:
        if share:
            share.check_serves(CPU)
        self._denormals = denormals
        self._cores = share.cores if share else None
        self._bundle = bundle
        check_processor(bundle)
        load_runtime()
        self.weights = Weights(bundle) if weights is None else weights.of_member(bundle)

    def look(self) -> ShareHere:
        here = share.share_here()
        if self._cores is None:
            return here
        if self._cores > here.units:
            raise ShareUnavailable(
                f"share 'cpu:{self._cores}' is larger than the share of this process: {here.reason}; "
                f"request cpu:{here.units} at most"
            )
        reason = f"cpu:{self._cores} as requested, of {here.reason}"
        return replace(here, units=self._cores, reason=reason, quota=None)

    def limits(self) -> tuple[Any, ...]:
        return share.LIMITS.read() if self._cores is None else ()

    def load_variant(self, variant: str) -> Variant:
        loaded = load_variant(self._bundle, variant, self.weights)
        into = loaded.into and with_denormals(loaded.into, kept=self._denormals)
        return Variant(with_denormals(loaded.main, kept=self._denormals), into)

    def arguments(self, specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[Any]:
        return tensors.as_arguments(specs, inputs)

    def run(self, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        try:
            return tensors.flat(variant.main(*arguments))
        except MISFITS as error:
            raise self._failure(error) from error

    def run_into(self, variant: Variant, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        if variant.into is None:
            for made, output in zip(self.run(variant, arguments), outputs, strict=True):
                copy_tensor(made, output)
            return
        try:
            variant.into(arguments, outputs)
        except MISFITS as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> FractuneError:
        if isinstance(error, RuntimeError) and _SHAPE_CHECK not in str(error):
            return FractuneError(f"the model failed on the CPU ({first_line(error)})")
        return misfit(self._bundle, error)

    def placed(self, arguments: Sequence[Any]) -> list[Any]:
        return list(arguments)

    def array(self, output: Any) -> Array:
        return tensors.as_array(output).copy()
