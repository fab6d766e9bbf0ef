"""A bundle beside its ONNX file, set of inputs by set of inputs, and the first node that differs.

To find that node, the graph is cut at a value, which becomes its only output. The cut graph is imported, compiled
without schedules, and compared with the reference. By halves this finds a value that differs though all that its node
reads agrees.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fractune_core.agreement import Verdict, blank_outputs, judge, nothing_shown
from fractune_core.errors import FractuneError, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import Checked
from fractune_core.model_inputs import constants_in, fitting_shape, parse_numbers, shapes_in
from fractune_core.names import UNTUNED_VARIANT
from fractune_runtime.cpu import OnCpu
from fractune_runtime.right_outputs import Deadline, Feed, moved_outputs
from fractune_runtime.tvm_runtime.drawing import accepted_integers, telling_ranges
from fractune_runtime.tvm_runtime.runtime import load_runtime, with_denormals
from fractune_runtime.tvm_runtime.tensors import TensorSpec, specs_of
from fractune_runtime.tvm_runtime.variants import load_code
from fractune_workers.children.checking import references
from fractune_workers.children.importing.onnx_graph import described, inputs_of, makers_of, names_read, needed_for

_log = logging.getLogger(__name__)

Differs = Callable[[onnx.ModelProto], bool]
"""Whether the cut model's output differs from the reference's. It may raise any error where that is not known."""


def first_different(model: onnx.ModelProto, outputs: Sequence[str], differs: Differs, deadline: Deadline) -> Any | None:
    """The node; None if all outputs agree when the model is imported again. After the deadline it is the last node that
    was seen to differ. Raises FractuneError if that cannot be found out.
    """
    nodes = list(model.graph.node)
    makers = makers_of(nodes)
    known: dict[str, bool | None] = {}

    def test(name: str) -> bool | None:
        if name not in known:
            known[name] = _tested(model, nodes, name, differs)
        return known[name]

    found = next((name for name in outputs if test(name)), None)
    if found is None:
        if None in known.values():
            raise FractuneError("an output cannot be compared apart")
        return None
    agreeing: set[int] = set()
    while deadline.left_s > 0:
        place = makers[found]
        before = [at for at in needed_for([found], nodes) if at != place and at not in agreeing]
        if not before:
            break
        middle = before[len(before) // 2]
        names = [name for name in nodes[middle].output if name]
        wrong = next((name for name in names if test(name)), None)
        if wrong is not None:
            found = wrong
        else:
            # What cannot be compared is passed over: a value behind it will tell.
            compared = any(known[name] is False for name in names)
            agreeing.update(needed_for(names[:1], nodes) if compared and names else [middle])
    return nodes[makers[found]]


def _tested(model: onnx.ModelProto, nodes: Sequence[Any], name: str, differs: Differs) -> bool | None:
    try:
        return differs(cut_at(model, nodes, name))
    except (FractuneError, ValueError, RuntimeError, TypeError, KeyError, IndexError) as error:
        _log.info("'%s' cannot be compared: %s", name, first_line(error))
        return None


def cut_at(model: onnx.ModelProto, nodes: Sequence[Any], name: str) -> onnx.ModelProto:
    """The model with this value as its only output, and the nodes that it needs."""
    kept = [nodes[place] for place in needed_for([name], nodes)]
    read = {each for node in kept for each in names_read(node)} | {name}
    cut = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    cut.graph.name = model.graph.name or "cut"
    cut.graph.node.extend(kept)
    cut.graph.input.extend(model.graph.input)
    cut.graph.initializer.extend(each for each in model.graph.initializer if each.name in read)
    cut.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    cut.graph.output.append(onnx.ValueInfoProto(name=name))
    return cut


Candidate = Callable[[Feed], list[references.Array]]
"""Runs on inputs by their names in the file"""


def variants_of(bundle: Bundle, file_names: Sequence[str]) -> dict[str, Callable[[], Candidate]]:
    """By name, the way to load each variant. The inputs have these names in the file.

    Raises FractuneError where inputs do not correspond.
    """
    names = _paired([each["name"] for each in bundle.manifest["inputs"]], file_names)
    backend, specs = OnCpu(bundle, None), specs_of(bundle.manifest["inputs"])

    def load(variant: str) -> Candidate:
        loaded = backend.load_variant(variant)

        def run(feed: Feed) -> list[references.Array]:
            given = {spec.name: feed[name] for spec, name in zip(specs, names, strict=True)}
            return [backend.array(output) for output in backend.run(loaded, backend.arguments(specs, given))]

        return run

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


def imported(model: onnx.ModelProto, inputs: Mapping[str, Sequence[int]], target_text: str) -> Candidate:
    """The model, imported and compiled without schedules. Raises what the importer raises."""
    import tvm

    from fractune_workers.children.compiling.variants import compile_variants
    from fractune_workers.children.compiling.weights import LiftedWeights
    from fractune_workers.children.importing.limits import Limits
    from fractune_workers.children.importing.model_file import load_fixed
    from fractune_workers.children.importing.passes import prepare
    from fractune_workers.children.tvm_api.target import parse_target

    data = model.SerializeToString()
    target = parse_target(target_text, 1)
    constants = constants_in(inputs)
    lifted_weights = LiftedWeights()
    lifted = lifted_weights.lifted(prepare(load_fixed(data, inputs, Limits(len(data))), target))
    objects = compile_variants([lifted.module], target, [{}], {})[0]
    own = [lifted_weights.tensors[place] for place in lifted.weights]
    load_runtime()
    code, _ = load_code(list(objects.values()), own, within=partial(with_denormals, kept=False))
    names = [value.name for value in inputs_of(model.graph) if value.name not in constants]

    def run(feed: Feed) -> list[references.Array]:
        given: list[Any] = [tvm.runtime.tensor(feed[name]) for name in names]
        return [each.copy() for each in code.held(given)]

    return run


COMPARING_S, BISECTING_S, UNTUNED_S = 60.0, 150.0, 10.0
"""CPU seconds after which no further run begins; of the untuned variant, on other inputs than the first. If its
operators are known to take longer, it does not run. Other work may stop this process for minutes, or share its cores"""
_CLOCK = time.process_time
_FEWEST_MOVES = 2
"""runs on moved inputs and weights with which there is a verdict"""
_NO_TIME = f"the {COMPARING_S:.0f} s of CPU time for this check were over"
_KINDS = "biuf"


class DiffersError(FractuneError):
    """The bundle computes something else than the model file."""


class _NoTimeError(FractuneError):
    """The check takes too long."""


@dataclass
class _Answers:
    """The reference's outputs for one set."""

    feed: dict[str, references.Array]
    outputs: list[references.Array]
    right: list[list[references.Array]] | None = None
    """these, and outputs that are as right"""


@dataclass
class _Found:
    sets: dict[str, float] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


class Comparison:
    """A bundle of one shape, and the file that it was made from. `inputs` are those of the job. A `folder` has weights
    that are not in the data.

    Raises FractuneError if nothing can be compared.
    """

    def __init__(
        self,
        data: bytes,
        model: onnx.ModelProto,
        inputs: Mapping[str, Sequence[int]],
        bundle: Bundle,
        folder: Path | None = None,
    ) -> None:
        self._data, self._model, self._bundle = data, model, bundle
        self._reference = references.reference(len(data), folder)
        self._precision = references.precision_of(model)
        self._outputs = [output.name for output in model.graph.output]
        if len(self._outputs) != len(bundle.manifest["outputs"]):
            raise FractuneError("the bundle has other outputs than the file")
        self._specs = _specs(model.graph, inputs, bundle)
        self._inputs = {**inputs, **{spec.name: list(spec.shape) for spec in self._specs if spec.shape}}
        self._constants = _constants(model.graph, inputs)
        self._deadline = Deadline(COMPARING_S, _CLOCK)
        self._run = references.without_repeats(self._reference.open(data, self._outputs))
        self._within: dict[str, range] | None = None

    def compared(self, given: Mapping[str, references.Array] | None) -> Checked:
        """What was compared. Raises DiffersError."""
        found, answers = _Found(), dict[str, tuple[references.InputSet, _Answers]]()
        sets = [
            *([references.given_set(given, len(self._outputs))] if given else []),
            *references.input_sets(self._model, self._specs),
        ]
        variants = variants_of(self._bundle, [spec.name for spec in self._specs])
        for name, load in variants.items():
            if self._deadline.left_s <= 0:
                found.skipped[name] = _NO_TIME
                continue
            if name == UNTUNED_VARIANT and found.sets and (sum_s := self._bundle.untuned_sum_s()) > UNTUNED_S:
                # The others agree with the reference, and each of their operators with its untuned one.
                found.skipped[name] = f"its operators take {sum_s:.0f} s"
                continue
            self._compare_on(sets, name, load(), answers, found)
            found.variants.append(name)
        runs = _different([answer for each, answer in answers.values() if not each.is_extreme])
        if blank := nothing_shown(runs):
            raise FractuneError(f"the reference's outputs are {blank}; give inputs of your own by --check-inputs")
        if not found.sets:
            raise FractuneError("; ".join(dict.fromkeys(found.skipped.values())) or "no output can be compared")
        outputs = {f"output '{self._outputs[place]}'": f"it is {what}" for place, what in blank_outputs(runs).items()}
        return Checked(
            f"{self._reference.name} {self._reference.version}",
            found.sets,
            tuple(found.variants),
            found.skipped | outputs,
            ranges=self._ranges(),
        )

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """By the bundle's names of its inputs."""
        own = [each["name"] for each in self._bundle.manifest["inputs"]]
        pairs = zip(own, _paired(own, [spec.name for spec in self._specs]), strict=True)
        within = self._within or {}
        return {name: (within[there].start, within[there].stop - 1) for name, there in pairs if there in within}

    def _compare_on(
        self,
        sets: Sequence[references.InputSet],
        variant: str,
        candidate: Candidate,
        answers: dict[str, tuple[references.InputSet, _Answers]],
        found: _Found,
    ) -> None:
        """A slow untuned variant, which serves in need alone, is compared on the first inputs."""
        begun_s = _CLOCK()
        for number, each in enumerate(sets):
            if variant == UNTUNED_VARIANT and number and _CLOCK() - begun_s > UNTUNED_S:
                found.skipped[f"{variant} beyond {sets[0].name} inputs"] = "it is slow"
                break
            if each.name not in found.skipped:
                self._compare(variant, candidate, each, answers, found)

    def _compare(
        self,
        variant: str,
        candidate: Candidate,
        each: references.InputSet,
        answers: dict[str, tuple[references.InputSet, _Answers]],
        found: _Found,
    ) -> None:
        try:
            if each.name not in answers:
                self._check_time()
                answers[each.name] = each, self._answers(each)
            known = answers[each.name][1]
            self._check_time()
            outputs = candidate(known.feed)
            verdict = self._verdict(each, known, outputs)
        except (references.RefusedError, _NoTimeError) as error:
            if each.name not in found.sets:
                found.skipped[each.name] = first_line(error)
            return
        if not verdict.agrees:
            raise DiffersError(self._difference(variant, each, known, outputs, verdict))
        outputs_there = [known.outputs[place] for place in each.outputs]
        if not each.is_extreme and (blank := nothing_shown([outputs_there])):
            found.skipped[each.name] = f"its outputs are {blank}"
        elif verdict.decided:
            found.sets[each.name] = max(verdict.difference, found.sets.get(each.name, 0.0))
        else:
            found.skipped[each.name] = "rounding decides all of the outputs"

    def _check_time(self) -> None:
        if self._deadline.left_s <= 0:
            raise _NoTimeError(_NO_TIME)

    def _answers(self, each: references.InputSet) -> _Answers:
        """The inputs of the set, with integers that the reference takes. Raises RefusedError."""
        if self._within is None:
            specs = [TensorSpec(spec.name, spec.dtype, spec.shape) for spec in self._specs]
            within = accepted_integers(specs, self._accepted)
            self._within = telling_ranges(specs, lambda inputs: self._run({**inputs, **self._constants}), within)
        feed = {**each.draw(self._within), **self._constants}
        return _Answers(feed, self._run(feed))

    def _accepted(self, inputs: dict[str, references.Array]) -> list[references.Array]:
        self._run({**inputs, **self._constants})
        return [np.zeros(1)]  # an index outside is an error; a NaN of the model's own says nothing

    def _verdict(self, each: references.InputSet, known: _Answers, outputs: Sequence[references.Array]) -> Verdict:
        def right() -> list[list[references.Array]]:
            if known.right is None:
                others = self._others(self._data, self._outputs, known.feed, self._deadline)
                known.right = [known.outputs, *others]
            return [[run[place] for place in each.outputs] for run in known.right]

        chosen = [[all_outputs[place] for place in each.outputs] for all_outputs in (outputs, known.outputs)]
        return judge(chosen[0], chosen[1], right, self._precision)

    def _others(
        self, data: bytes, outputs: Sequence[str], feed: Feed, deadline: Deadline
    ) -> list[list[references.Array]]:
        """Outputs that are as right as the reference's. Raises _NoTimeError."""
        moved = moved_outputs(
            data, feed, self._precision, lambda data: self._reference.open(data, outputs), deadline, self._constants
        )
        if len(moved) < _FEWEST_MOVES:
            raise _NoTimeError(
                _NO_TIME if deadline.left_s <= 0 else "it cannot be run on inputs that are moved a little"
            )
        if self._reference.fused is not None:
            with contextlib.suppress(references.RefusedError):
                moved.append(self._reference.fused(data, outputs)(feed))
        return moved

    def _difference(
        self,
        variant: str,
        each: references.InputSet,
        known: _Answers,
        outputs: Sequence[references.Array],
        verdict: Verdict,
    ) -> str:
        place = each.outputs[verdict.differs_at or 0]
        by = (
            f"by {verdict.difference:.1e} of the largest value"
            if verdict.difference < np.inf
            else _kind_text(outputs[place], known.outputs[place])
        )
        what = (
            f"the bundle's output '{self._outputs[place]}' differs from {self._reference.name}'s {by}, on the inputs "
            f"'{each.name}' (variant {variant}), and rounding does not explain it"
        )
        try:
            node = self._first_node(each, known)
        except FractuneError as error:
            return f"{what}; the node that does it was not found ({error})"
        if node is None:
            return f"{what}; the model itself is imported right, so the schedules of this variant are wrong"
        return f"{what}; the first node that computes something else is {described(node)}"

    def _first_node(self, each: references.InputSet, known: _Answers) -> Any:
        deadline = Deadline(BISECTING_S, _CLOCK)
        model = onnx.inliner.inline_local_functions(self._model) if self._model.functions else self._model
        target = self._bundle.manifest["target"]

        def differs(cut: onnx.ModelProto) -> bool:
            (name,) = (output.name for output in cut.graph.output)
            data = cut.SerializeToString()
            wanted = self._reference.open(data, [name])(known.feed)
            found = imported(cut, self._inputs, target)(known.feed)
            others = partial(self._others, data, [name], known.feed, deadline)
            return not judge(found, wanted, lambda: [wanted, *others()], self._precision).agrees

        return first_different(model, [self._outputs[place] for place in each.outputs], differs, deadline)


def _different(answers: Sequence[_Answers]) -> list[list[references.Array]]:
    """The outputs on inputs that differ: sets may draw the same."""
    feeds = {b"".join(array.tobytes() for array in each.feed.values()): each.outputs for each in answers}
    return list(feeds.values())


def _kind_text(output: references.Array, wanted: references.Array) -> str:
    if output.shape != wanted.shape:
        return f"in its shape ({list(output.shape)} for {list(wanted.shape)})"
    unlike = np.flatnonzero(np.ravel(~((output == wanted) | ((output != output) & (wanted != wanted)))))  # noqa: PLR0124
    at = int(unlike[0]) if len(unlike) else 0
    return f"in kind (element {at} is {np.ravel(output)[at]} for {np.ravel(wanted)[at]})"


def _specs(graph: onnx.GraphProto, inputs: Mapping[str, Sequence[int]], bundle: Bundle) -> list[references.InputSpec]:
    """Of the inputs that are no constants. Raises FractuneError for an input that is no tensor of numbers."""
    shapes, constants = shapes_in(inputs), constants_in(inputs)
    held = {each["name"]: each["shape"] for each in bundle.manifest["inputs"]}
    values = [value for value in inputs_of(graph) if value.name not in constants]
    if len(held) == len(values):  # by position: TVM may have changed the names
        held = {value.name: shape for value, shape in zip(values, held.values(), strict=True)} | held
    found = []
    for value in values:
        tensor = value.type.tensor_type
        try:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        except KeyError as error:
            raise FractuneError(f"input '{value.name}' is no tensor of numbers") from error
        if dtype.name != "bfloat16" and dtype.kind not in _KINDS:
            raise FractuneError(f"input '{value.name}' is no tensor of numbers")
        own = [dim.dim_value or 1 for dim in tensor.shape.dim]
        found.append(
            references.InputSpec(value.name, dtype.name, tuple(shapes.get(value.name) or held.get(value.name, own)))
        )
    return found


def _constants(graph: onnx.GraphProto, inputs: Mapping[str, Sequence[int]]) -> dict[str, references.Array]:
    shapes, made = shapes_in(inputs), dict[str, references.Array]()
    for value in inputs_of(graph):
        text = constants_in(inputs).get(value.name)
        if text is None:
            continue
        tensor = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type or onnx.TensorProto.FLOAT)
        numbers = parse_numbers(value.name, text, dtype.name)
        own: list[int | None] = [dim.dim_value or None for dim in tensor.shape.dim]
        shape = fitting_shape(value.name, len(numbers), list(shapes.get(value.name, own)))
        given = np.asarray(numbers, dtype)
        made[value.name] = np.full(shape, given[0]) if len(numbers) == 1 else given.reshape(shape)
    return made
