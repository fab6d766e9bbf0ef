"""A loaded bundle of a model in parts: its own code runs some, and ONNX Runtime the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, RUNTIMES
from fractune_core.files.staged import Stages, Step, Tensor
from fractune_runtime.choosing import VariantChoice, runtime_choice
from fractune_runtime.cpu import ShareHere
from fractune_runtime.model import Model, warn_caller
from fractune_runtime.runner import Turn, begin_in_forked_children
from fractune_runtime.sessions import Session, keep_forever, open_session, runtime_variant, settings_of
from fractune_runtime.tvm_runtime import tensors
from fractune_runtime.tvm_runtime.drawing import random_inputs
from fractune_runtime.tvm_runtime.runtime import Weights
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec
from fractune_runtime.tvm_runtime.variants import Bound, BoundMemory, Called


@dataclass(frozen=True)
class _Opened:
    """What runs at a share."""

    share: ShareHere
    whole: Called | None
    """the whole model in another runtime, if that was faster"""
    sessions: dict[str, Session] = field(default_factory=dict)
    """by the part's entry in the bundle; those that have run"""
    is_forked: bool = False
    """the threads of the parent's sessions are not there: it is to be opened again"""


class StagedModel(Model):
    """The parts of a model, run one after the other. Values pass from one to the next in place.

    Its `choice`, `threads` and `share` are those of its own first part, or of another runtime if that runs the whole
    model. A variant is that of every own part. Parts of ONNX Runtime have as many threads as the share has cores.
    """

    stages: Stages
    """the parts in the order of running"""

    def __init__(self, bundle: Bundle, **options: Any) -> None:  # not of `Model`: it has models, and is none of them
        """As `fractune.load`. Raises FractuneError if ONNX Runtime is not installed."""
        if bundle.manifest["device"]["kind"] != "cpu":
            raise BadBundle(f"{bundle.name} is of a model in parts, which run on a CPU; tune it for CPU shares")
        self.bundle = bundle
        self.stages = Stages.from_json(bundle.manifest["stages"])
        self.inputs, self.outputs = staged_interface(bundle)
        self.slots = ()
        self._goal = options.get("goal", "latency")
        self._uses_runtimes = options.get("runtimes", True) and options.get("threads") is None
        self._turn = Turn()
        weights = Weights(bundle.members[0])
        self._members = [Model(each, **options, weights=weights, turn=self._turn) for each in bundle.members]
        self._opened = self._open(self._members[0])
        begin_in_forked_children(self)

    def begin_in_child(self) -> None:  # its models have their own
        keep_forever(self._opened)
        self._opened = replace(self._opened, whole=None, sessions={}, is_forked=True)

    def run(self, inputs: Mapping[str, Any], variant: str | None = None, *, slot: int | None = None) -> list[Array]:
        """The outputs as separate arrays. Raises BadRequest for wrong inputs, an unknown variant, and for a slot."""
        if slot is not None:
            self._no_slots()
        return self._run(tensors.as_arrays(self.inputs, inputs), variant)

    def run_tensors(self, inputs: Mapping[str, Any], variant: str | None = None) -> list[Any]:
        """The arrays of `run`."""
        return self.run(inputs, variant)

    def bind(
        self,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        variant: str | None = None,
    ) -> Bound:
        """As `Model.bind`; each call copies its outputs once."""
        self._check_variant(variant)
        memory = BoundMemory(self.inputs, inputs, self.outputs, outputs)
        return Bound(memory, partial(self._run_into, variant, memory.arguments, memory.results))

    def placed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(tensors.as_arrays(self.inputs, inputs))

    def follow(self) -> None:
        for member in self._members:
            member.follow()

    def rematch(self) -> VariantChoice:
        for member in self._members:
            member.rematch()
        self._opened = self._open(self._members[0])
        return self.choice

    @property
    def throttled(self) -> float | None:
        return self._members[0].throttled

    @property
    def occupancy(self) -> float:
        return 0.0

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        return random_inputs(self.inputs, seed)

    def run_slots(
        self, requests: Mapping[int, Mapping[str, Any]], variant: str | None = None
    ) -> dict[int, list[Array]]:
        del requests, variant
        self._no_slots()

    def _no_slots(self) -> NoReturn:
        raise BadRequest(f"{self.bundle.name} is of a model in parts, without slots; name none")

    def _check_variant(self, variant: str | None) -> None:
        names = [each["name"] for each in self.bundle.variants]
        if variant is not None and variant not in names and variant not in RUNTIMES:
            raise BadRequest(f"{self.bundle.name} has no variant '{variant}'; it has {', '.join(names)}")

    def _run_into(self, variant: str | None, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
        names = [spec.name for spec in self.inputs]
        found = self._run(dict(zip(names, map(tensors.as_array, arguments), strict=True)), variant)
        for mine, theirs in zip(outputs, found, strict=True):
            tensors.as_array(mine)[...] = theirs

    def _run(self, inputs: dict[str, Array], variant: str | None) -> list[Array]:
        self._check_variant(variant)
        opened = self._here()
        if opened.whole is not None and (variant is None or variant in RUNTIMES):
            arguments = [tensors.as_tensor(spec.name, inputs[spec.name]) for spec in self.inputs]
            with self._turn.lock:
                # Copied before the next call: a runtime may write its outputs to the same memory again.
                return [each.copy() for each in opened.whole.held(arguments)]
        values: dict[str, Any] = dict(inputs)
        for step in self.stages.steps:
            values.update(self._run_step(step, values, opened, variant))
        made = {each.name for step in self.stages.parts for each in step.outputs}
        # What an own part makes is its memory, which it uses again; and an output may be an input.
        return [
            values[spec.name] if spec.name in made else _as_array(values[spec.name]).copy() for spec in self.outputs
        ]

    def _run_step(self, step: Step, values: Mapping[str, Any], opened: _Opened, variant: str | None) -> dict[str, Any]:
        names = [each.name for each in step.outputs]
        if step.member is not None:
            given = {each.name: values[each.name] for each in step.inputs}
            return dict(zip(names, self._members[step.member].run_tensors(given, variant), strict=True))
        feed = {each.name: _as_array(values[each.name]) for each in step.inputs}
        outputs = dict(zip(names, self._session(step, opened).run(feed), strict=True))
        for each in step.outputs:
            found = outputs[each.name]
            if found.dtype.name != each.dtype or not _spec(each).has_shape(found.shape):
                raise BadBundle(
                    f"{self.bundle.name}: ONNX Runtime gives '{each.name}' as {found.dtype} of the shape "
                    f"{found.shape}, and the next part takes {each.dtype} of the shape {each.shape}; tune the model "
                    "again for inputs of this kind"
                )
        return outputs

    def _here(self) -> _Opened:
        """What runs at the share that the own parts follow."""
        self._members[0].follow()
        if self._opened.is_forked or self._members[0].share != self._opened.share:
            self._opened = self._open(self._members[0])
        return self._opened

    def _open(self, first: Model) -> _Opened:
        share = first.share
        found = first.choice
        if self._uses_runtimes:
            found, missing = runtime_choice(self.bundle, share, found, self._goal)
            if missing:
                warn_caller(missing)
        threads = found.threads
        cpus = share.cpus[:threads]
        self.share, self.choice, self.threads = share, found, threads
        if found.variant in RUNTIMES:
            return _Opened(share, runtime_variant(self.bundle, found.variant, threads, cpus))
        opened = _Opened(share, None)
        for step in self.stages.parts:
            self._session(step, opened)
        return opened

    def _session(self, step: Step, opened: _Opened) -> Session:
        session = opened.sessions.get(step.part)
        if session is None:
            cpus = opened.share.cpus[: opened.share.units]
            name, file = f"{self.bundle.name}, {step.part}", self.bundle.read(step.part)
            session = open_session(ONNX_RUNTIME, file, name, len(cpus), cpus, settings_of(ONNX_RUNTIME), {})
            _check_names(name, step, session)
            opened.sessions[step.part] = session
        return session


def _check_names(name: str, step: Step, session: Session) -> None:
    """Raises BadBundle for a file that is not the one of the step."""
    for tensors_of, names in ((step.inputs, session.input_names), (step.outputs, session.output_names)):
        if {each.name for each in tensors_of} != set(names):
            wanted = ", ".join(each.name for each in tensors_of)
            raise BadBundle(f"{name} has {', '.join(names)} where the bundle says {wanted}; make the bundle again")


def staged_interface(bundle: Bundle) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """The inputs and outputs of the whole model."""
    stages = Stages.from_json(bundle.manifest["stages"])
    return list(map(_spec, stages.inputs)), list(map(_spec, stages.outputs))


def _spec(each: Tensor) -> TensorSpec:
    return TensorSpec(each.name, each.dtype, tuple(each.shape))


def _as_array(value: Any) -> Array:
    return value if hasattr(value, "ctypes") else tensors.as_array(value)
