"""Loading a bundle file.

model = fractune.load("m.fractune")
outputs = model.run({"data": array})
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.errors import BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.served import ServiceGoal
from fractune_runtime.bucketed_model import BucketedModel
from fractune_runtime.model import Model
from fractune_runtime.signatures import open_bundle
from fractune_runtime.staged_model import StagedModel
from fractune_runtime.tvm_runtime.tensors import TensorSpec

if TYPE_CHECKING:
    from fractune_runtime.tvm_runtime.tensors import Array

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""by the kind of a bundle's device"""
_TYPES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names that differ from ours"""


def load(
    path: str | os.PathLike[str],
    *,
    share: str | None = None,
    public_key: str | bytes | None = None,
    policy: Policy = DEFAULT_POLICY,
    goal: ServiceGoal = "latency",
    threads: int | None = None,
    split: Literal["batch"] | None = None,
    runtimes: bool = True,
    denormals: bool = False,
) -> Model:
    """Load the bundle at `path` for the share of this process, or for `share`. A `cpu:N` may not be larger. For a GPU
    (`mps:PERCENT`, `mps-sm:CHUNKS`, `mig:...`, `full`) it is the share that the process must have.

    With `public_key` (PEM text) a bundle that its owner did not sign is refused. `policy` limits the distance between
    the share and a variant's measurements. A RuntimeWarning says what to tune if only the untuned variant fits. Under a
    CPU limit (a cgroup's quota) predictions choose the number of threads. The goal is the least latency of requests
    with pauses, or the most requests in a loop (`throughput`). On a CPU `threads` is the number of threads, at most the
    CPUs of the process; None = as the share and the goal say.

    If another runtime was faster at this share (`fractune.compete`), it runs the model. If it is not installed, a
    RuntimeWarning says so. With `runtimes=False` the bundle's own code runs.

    On an x86-64 CPU the bundle's own code takes numbers below the smallest normal one of their type as zero. Of float32
    these are the numbers below 1.2e-38, with which many processors compute a hundred times slower. Numbers that are
    only copied stay. With `denormals=True` it computes with all numbers. Code around the model is not changed.

    A bundle for several shapes gives a `BucketedModel`. With `split="batch"` it runs a batch above its largest in
    parts. A bundle of a model in parts gives a `StagedModel`, which needs ONNX Runtime.

    Raises BadBundle, BadRequest, ShareUnavailable, or FractuneError when TVM is not installed.
    """
    bundle = open_bundle(path, public_key)
    return model_of(
        bundle,
        share=share,
        policy=policy,
        goal=goal,
        threads=threads,
        split=split,
        runtimes=runtimes,
        denormals=denormals,
    )


def model_of(bundle: Bundle, *, split: Literal["batch"] | None = None, **options: Any) -> Model:
    """As `load`, of a bundle that is open."""
    if "buckets" in bundle.manifest:
        return BucketedModel(bundle, split=split, **options)
    if "stages" in bundle.manifest and split is None:
        return StagedModel(bundle, **options)
    if split is not None:
        raise BadRequest(f"split is '{split}', and {bundle.name} has one shape alone; leave split out")
    return Model(bundle, **options)


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
