"""What is compared with the reference: the variants of a bundle, and a model that is imported once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx

from fractune_core.errors import FractuneError
from fractune_core.files.bundles import Bundle
from fractune_workers.children.checking.references import Array, Feed
from fractune_workers.children.importing.onnx_graph import inputs_of
from fractune_workers.children.tvm_api.bundle_runs import load_variant, outputs_of, weights_of
from fractune_workers.children.tvm_api.processor import Processor

Candidate = Callable[[Feed], list[Array]]
"""Runs on inputs by their names in the file"""


def variants_of(bundle: Bundle, file_names: Sequence[str], processor: Processor) -> dict[str, Callable[[], Candidate]]:
    """By name, the way to load each variant. The inputs have these names in the file.

    Raises FractuneError where inputs do not correspond.
    """
    names = _paired([each["name"] for each in bundle.manifest["inputs"]], file_names)
    weights = weights_of(bundle, processor)

    def load(variant: str) -> Candidate:
        main = load_variant(bundle, variant, weights, processor)
        return lambda feed: outputs_of(main(*(processor.tensor(feed[name]) for name in names)), processor)

    # The tuned ones first: the untuned one may take long.
    order = sorted((each["name"] for each in bundle.variants), key=lambda name: name == "untuned")
    return {name: partial(load, name) for name in order}


def _paired(own: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """The file's names of the bundle's inputs."""
    if set(own) <= set(theirs):
        return list(own)
    if len(own) != len(theirs):
        raise FractuneError(f"the bundle has {len(own)} inputs, and the file has {len(theirs)}")
    return list(theirs)


def imported(
    model: onnx.ModelProto, inputs: Mapping[str, Sequence[int]], target_text: str, processor: Processor
) -> Candidate:
    """The model, imported and compiled without schedules. Raises what the importer raises."""
    from tvm import relax

    from fractune_core.model_inputs import constants_in
    from fractune_workers.children.compiling.variants import compile_variants
    from fractune_workers.children.importing.limits import Limits
    from fractune_workers.children.importing.model_file import load_fixed
    from fractune_workers.children.importing.passes import prepare
    from fractune_workers.children.tvm_api.artifacts import load_objects
    from fractune_workers.children.tvm_api.target import parse_target
    from fractune_workers.children.tvm_api.weights import LiftedWeights

    data = model.SerializeToString()
    target = parse_target(target_text, 1)
    constants = constants_in(inputs)
    lifted_weights = LiftedWeights()
    lifted = lifted_weights.lifted(prepare(load_fixed(data, inputs, Limits(len(data))), target))
    objects = compile_variants([lifted.module], target, [{}], {})[0]
    main = relax.VirtualMachine(load_objects(list(objects.values())), processor.device)["main"]
    own = [processor.tensor(lifted_weights.tensors[place].numpy()) for place in lifted.weights]
    names = [value.name for value in inputs_of(model.graph) if value.name not in constants]

    def run(feed: Feed) -> list[Array]:
        given: list[Any] = [processor.tensor(feed[name]) for name in names]
        return outputs_of(main(*given, *own), processor)

    return run
