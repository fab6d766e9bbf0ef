"""A session with ONNX Runtime's interface, so that a program changes only its import and its path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fractune.inference.loading import model_of
from fractune.inference.signatures import open_bundle
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.errors import BadRequest
from fractune_core.served import ServiceGoal

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""by the kind of a bundle's device"""
_TYPES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names that differ from ours"""


@dataclass(frozen=True)
class NodeArg:
    """An input or an output."""

    name: str
    shape: list[int | None]
    type: str
    """as ONNX Runtime writes it: `tensor(float)`"""


class InferenceSession:
    """The common part of `onnxruntime.InferenceSession`, over `fractune.load`, with its options. `providers` is
    optional, for programs that name them; without the provider of the bundle's device it raises BadRequest.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        providers: Sequence[str] | None = None,
        share: str | None = None,
        public_key: str | bytes | None = None,
        policy: Policy = DEFAULT_POLICY,
        goal: ServiceGoal = "latency",
        denormals: bool = False,
    ) -> None:
        bundle = open_bundle(path, public_key)
        own = _PROVIDERS.get(bundle.manifest["device"]["kind"], "")
        if providers is not None and own not in providers:
            raise BadRequest(f"providers {list(providers)}: {bundle.name} runs by {own}; name that provider, or none")
        self.model = model_of(bundle, share=share, policy=policy, goal=goal, denormals=denormals)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Array]:
        """The outputs with these names in this order, or all of them. Raises BadRequest for wrong names or inputs."""
        names = [spec.name for spec in self.model.outputs]
        strangers = [name for name in output_names or () if name not in names]
        if strangers:
            raise BadRequest(f"the model has no output '{strangers[0]}'; it gives {', '.join(names)}")
        outputs = dict(zip(names, self.model.run(input_feed), strict=True))
        return [outputs[name] for name in output_names or names]

    def get_inputs(self) -> list[NodeArg]:
        return [_node(spec) for spec in self.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node(spec) for spec in self.model.outputs]


def _node(spec: TensorSpec) -> NodeArg:
    return NodeArg(spec.name, list(spec.shape), f"tensor({_TYPES.get(spec.dtype, spec.dtype)})")
