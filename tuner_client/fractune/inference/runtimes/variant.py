"""The model file in a bundle as a variant that another runtime runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fractune.inference.runtimes.sessions import Session, open_session
from fractune.inference.tvm_runtime.runtime import Variant
from fractune.inference.tvm_runtime.tensors import TensorSpec, as_array, as_tensor
from fractune_core.errors import BadModel
from fractune_core.files.buckets import input_shapes
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import MODEL, Runtime


def runtime_variant(bundle: Bundle, runtime: str, threads: int, cpus: Sequence[int]) -> Variant:
    """The model in `runtime`, on so many threads of `cpus`. Raises BadBundle, BadModel, FractuneError if the runtime is
    not installed.
    """
    session, names = held_session(bundle, runtime, threads, cpus, input_shapes(bundle.manifest))

    def main(*arguments: Any) -> list[Any]:
        outputs = session.run(dict(zip(names, map(as_array, arguments), strict=True)))
        return [as_tensor("output", output) for output in outputs]

    return Variant(main, None)


def held_session(
    bundle: Bundle, runtime: str, threads: int, cpus: Sequence[int], shapes: Mapping[str, Sequence[int]]
) -> tuple[Session, list[str]]:
    """A session of the model file in the bundle, and its names of the inputs in the bundle's order. Raises as
    `runtime_variant`.
    """
    settings = Runtime.from_json(bundle.manifest["runtimes"][runtime]).settings
    session = open_session(runtime, bundle.read(MODEL), bundle.name, threads, cpus, settings, shapes)
    return session, input_order(bundle.manifest, session)


def open_shapes(specs: Sequence[TensorSpec]) -> dict[str, list[int]]:
    """The shapes of inputs as runtimes take them: -1 for an open dimension."""
    return {spec.name: [-1 if size is None else size for size in spec.shape] for spec in specs}


def input_order(manifest: Mapping[str, Any], session: Session) -> list[str]:
    """The session's names of the bundle's inputs, in the bundle's order; names that differ belong together by position.

    Raises BadModel if there are other numbers of inputs or outputs.
    """
    own = [each["name"] for each in manifest["inputs"]]
    if len(session.input_names) != len(own) or len(session.output_names) != len(manifest["outputs"]):
        raise BadModel("the model file has other inputs or outputs than the bundle")
    return own if set(own) == set(session.input_names) else list(session.input_names)
