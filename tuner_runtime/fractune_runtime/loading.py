"""Loading a bundle file.

model = fractune.load("m.fractune")
outputs = model.run({"data": array})
"""

import contextlib
import os
from pathlib import Path
from typing import Any, Literal

from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.errors import BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.served import ServiceGoal
from fractune_runtime.model import Model
from fractune_runtime.tvm_runtime.tensors import TensorSpec
from fractune_runtime.tvm_runtime.variants import Interface


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
    check: bool = False,
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

    With `check=True` the variant that serves computes one inference before `load` returns, and the outputs are compared
    with those of the untuned variant at this very share. That takes one inference of each.

    A bundle for several shapes gives a `BucketedModel`. With `split="batch"` it runs a batch above its largest in
    parts. A bundle of a model in parts gives a `StagedModel`, which needs ONNX Runtime.

    Raises BadBundle, BadRequest, ShareUnavailable, OutputsDiffer, or FractuneError when TVM is not installed.
    """
    bundle = open_bundle(path, public_key)
    model = model_of(
        bundle,
        share=share,
        policy=policy,
        goal=goal,
        threads=threads,
        split=split,
        runtimes=runtimes,
        denormals=denormals,
    )
    if check:
        model.check()
    return model


def model_of(bundle: Bundle, *, split: Literal["batch"] | None = None, **options: Any) -> Model:
    """As `load`, of a bundle that is open. Most have one shape, and start without what the others need."""
    if "buckets" in bundle.manifest:
        from fractune_runtime.bucketed_model import BucketedModel

        return BucketedModel(bundle, split=split, **options)
    if "stages" in bundle.manifest and split is None:
        from fractune_runtime.staged_model import StagedModel

        return StagedModel(bundle, **options)
    if split is not None:
        raise BadRequest(f"split is '{split}', and {bundle.name} has one shape alone; leave split out")
    return Model(bundle, **options)


def interface_of(bundle: Bundle) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """The inputs and outputs of its model, without loading it."""
    if "buckets" in bundle.manifest:
        from fractune_runtime.bucketed_model import open_interface

        return open_interface(bundle)
    if "stages" in bundle.manifest:
        from fractune_runtime.staged_model import staged_interface

        return staged_interface(bundle)
    found = Interface(bundle)
    return found.inputs, found.outputs


def open_bundle(source: str | os.PathLike[str] | bytes, public_key_pem: str | bytes | None = None) -> Bundle:
    """The bundle in bytes, or in a file by its path. With a public key, its signature is checked before its manifest is
    parsed. Raises BadBundle, also without a signature by the key's owner, BadRequest for an invalid key, FractuneError
    when `cryptography` is not installed.
    """
    held = source if isinstance(source, bytes) else Path(source)
    if public_key_pem is None:
        return Bundle(held)
    from fractune_runtime.signatures import signature_check

    return Bundle(held, signature_check(public_key_pem))


def verify_bundle(path: str | os.PathLike[str], *, public_key: str | bytes | None = None) -> None:
    """Check every byte of the bundle at `path`, variants that are never loaded and the zip file's own fields too.

    With `public_key` (PEM text) its signature is checked as well. Raises as `open_bundle`; BadBundle names the changed
    part of the file.
    """
    with contextlib.closing(open_bundle(path, public_key)) as bundle:
        bundle.verify()
