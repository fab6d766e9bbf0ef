"""A loaded bundle for several shapes: it runs inputs of any shape up to its largest.

model = fractune.load("encoder.fractune")
outputs = model.run({"input_ids": ids, "attention_mask": mask})  # of 37 tokens, in the bucket of 64
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from fractune_core.agreement import differences, rounding
from fractune_core.analysis.match import How
from fractune_core.errors import BadRequest
from fractune_core.files.buckets import BATCH, Buckets, OpenAxes, Padding, input_shapes, sizes_text
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import MODEL, Compared, between_of
from fractune_core.served import ServiceGoal
from fractune_runtime.choosing import VariantChoice, Winner, compared_share
from fractune_runtime.cpu import ShareHere
from fractune_runtime.decoder import DecoderSession
from fractune_runtime.model import Model, warn_caller
from fractune_runtime.sessions import Feeder, RuntimeMissing, Session, held_session, keep_forever, open_shapes
from fractune_runtime.tvm_runtime.drawing import random_inputs
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec, open_arrays
from fractune_runtime.tvm_runtime.variants import Bound, Interface

_MOST_KNOWN = 4096
"""ways of requests that are kept, by the shapes"""


@dataclass(frozen=True)
class _Way:
    """Where a request runs."""

    member: int
    sizes: dict[str, int]
    """by symbol"""
    is_exact: bool
    server: ServesUpTo | None = None
    """another runtime, which runs these sizes as they are"""


class BucketedModel(Model):
    """A bundle's buckets over one copy of its weights. Its choice, threads and share are those of the largest bucket,
    and so is all else that `Model` has, where nothing else is said. Calls run one after the other, as those of a
    `Model`.

    A request runs in the smallest bucket that holds it. Smaller inputs are padded at the end of each open axis, if the
    bundle's `padding` was proved, and outputs have the shapes of the inputs as they were given. Where another runtime
    was faster than that, or nothing may be padded, it runs the inputs as they are (`fractune.compete`).
    """

    padding: Padding
    """whether smaller inputs may be padded, and why"""
    buckets: list[dict[str, list[int]]]
    """the shapes of the inputs, by name, from the smallest to the largest"""
    bucket_sizes: list[dict[str, int]]
    """the size of each open axis in each bucket, by its symbol"""
    axes: OpenAxes

    def __init__(self, bundle: Bundle, *, split: Literal["batch"] | None = None, **options: Any) -> None:
        """As `fractune.load`."""
        self._ways: dict[tuple[tuple[int, ...], ...], _Way] = {}
        self._sessions: dict[str, tuple[Session, Feeder]] = {}
        super().__init__(bundle, **options)
        held = Buckets.from_json(bundle.manifest["buckets"])
        self.axes, self._pad, self.padding = held.axes, held.pad, held.padding
        self._options = options
        self.inputs, self.outputs = open_interface(bundle)
        self._interfaces = [Interface(member) for member in bundle.members]
        self.buckets = [input_shapes(member.manifest) for member in bundle.members]
        self.bucket_sizes = [self.axes.sizes(shapes) for shapes in self.buckets]
        self._smaller: dict[int, Model] = {}
        self._splits = False
        if split is not None:
            self._check_split(split)
            self._check_rows()
            self._splits = True

    def run(self, inputs: Mapping[str, Any], variant: str | None = None, *, slot: int | None = None) -> list[Array]:
        """The outputs for inputs of any shape up to the largest bucket, as separate arrays. Raises BadRequest for wrong
        inputs, for shapes above all buckets, and for those between buckets where nothing may be padded.
        """
        parts = self._parts(inputs) if self._splits else []
        if len(parts) > 1:
            return _concatenated([self.run(part, variant, slot=slot) for part in parts])
        way = self._way(inputs)
        if way.is_exact:
            return Model.run(self._member(way.member), inputs, variant, slot=slot)
        if way.server is not None and variant is None:
            return self._run_as_they_are(way.server, inputs)
        if not self.padding.proved:
            raise self._not_padded(inputs)
        return self._run_padded(way.member, inputs, way.sizes, variant)

    def check(self) -> None:
        """As `Model.check`, of every bucket."""
        for bucket in range(len(self.buckets)):
            Model.check(self._member(bucket))

    def run_in(self, bucket: int, inputs: Mapping[str, Any]) -> list[Array]:
        """The outputs in the bucket with this number, which must hold the inputs. They are padded whether or not that
        was proved, for a comparison. Raises BadRequest.
        """
        return self._run_padded(bucket, inputs, self._sizes_of(inputs, self._shapes(inputs)), None)

    def _run_padded(
        self, bucket: int, inputs: Mapping[str, Any], sizes: Mapping[str, int], variant: str | None
    ) -> list[Array]:
        real = partial(_real_part, specs=self._interfaces[bucket].outputs, axes=self.axes, sizes=sizes)
        return Model.run_padded(self._member(bucket), inputs, self._pad, real, variant)

    def _run_as_they_are(self, server: ServesUpTo, inputs: Mapping[str, Any]) -> list[Array]:
        arrays = open_arrays(self.inputs, inputs)
        self.follow()
        with self._turn.lock:
            try:
                session, feed_of = self._session(server)
            except RuntimeMissing as error:
                warn_caller(f"{self.bundle.name}: its own code runs, because {error}")
                self._ways, self._servers = {}, self._no_servers()
            else:
                given = {spec.name: array for spec, array in zip(self.inputs, arrays, strict=True)}
                outputs = session.run(feed_of(given))
                # Copied before the next call: a runtime may write its outputs to the same memory again.
                return [output.copy() for output in outputs]
        return self.run(inputs)

    def _session(self, server: ServesUpTo) -> tuple[Session, Feeder]:
        """Opened at the first request between shapes, which takes as long as the runtime needs for the model."""
        if server.runtime not in self._sessions:
            cpus = self.share.cpus[: server.threads]
            found = held_session(self.bundle, server.runtime, server.threads, cpus, open_shapes(self.inputs))
            self._sessions[server.runtime] = found
        return self._sessions[server.runtime]

    def run_tensors(self, inputs: Mapping[str, Any], variant: str | None = None) -> list[Any]:
        """As `Model.run_tensors` for the exact shapes of a bucket; the arrays of `run` for other shapes."""
        way = self._way(inputs)
        if way.is_exact:
            return Model.run_tensors(self._member(way.member), inputs, variant)
        return self.run(inputs, variant)

    def bind(
        self,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        variant: str | None = None,
    ) -> Bound:
        """As `Model.bind`, for the bucket whose shapes the `inputs` have; without inputs, for the largest."""
        return Model.bind(self if inputs is None else self.bucket(inputs), inputs, outputs, variant)

    def placed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """As `Model.placed`, for inputs with the exact shapes of a bucket."""
        return Model.placed(self.bucket(inputs), inputs)

    def decoder(self, inputs: Mapping[str, Any] | None = None) -> DecoderSession:
        """As `Model.decoder`, over all buckets."""
        return DecoderSession([self._member(number) for number in range(len(self.buckets))], inputs)

    def bucket(self, inputs: Mapping[str, Any]) -> Model:
        """The model of the bucket whose exact shapes the inputs have: its `choice`, times and variants. Raises
        BadRequest if no bucket has these shapes.
        """
        way = self._way(inputs)
        if not way.is_exact:
            raise BadRequest(
                f"no bucket has the shapes {_text(inputs)}; give those of a bucket: {self._buckets_text()}"
            )
        return self._member(way.member)

    def random_inputs(self, seed: int = 0, *, bucket: int = -1) -> dict[str, Array]:
        """As `Model.random_inputs`, of the shapes of the bucket with this number, by default the largest."""
        return random_inputs(self._interfaces[bucket].inputs, seed)

    def begin_in_child(self) -> None:
        super().begin_in_child()
        keep_forever(self._sessions)
        self._sessions = {}

    def _no_servers(self) -> list[list[ServesUpTo]]:
        return [[] for _ in self.bundle.members]

    def _take(self, here: ShareHere) -> None:
        super()._take(here)
        missing = ""
        self._servers = self._no_servers()
        if self._runtimes and self._threads is None:
            self._servers, missing = servers_between(self.bundle, here, self.threads, self._goal)
        with self._turn.lock:
            self._ways, self._sessions = {}, {}
        if missing:
            warn_caller(missing)

    def choice_for(self, inputs: Mapping[str, Any]) -> VariantChoice:
        """What runs these inputs, and why: the choice of their bucket, or another runtime. Raises as `run`."""
        way = self._way(inputs)
        given, bucket = sizes_text(way.sizes), sizes_text(self.bucket_sizes[way.member])
        if way.server is not None:
            why = "is slower" if self.padding.proved else "may change the outputs"
            reason = f"it runs {given} as it is, because padding to {bucket} {why}"
            return VariantChoice(way.server.runtime, How.NEAR, math.nan, reason, way.server.threads)
        if not way.is_exact and not self.padding.proved:
            raise self._not_padded(inputs)
        choice = self._member(way.member).choice
        return choice if way.is_exact else replace(choice, reason=f"{given} is padded to {bucket}; {choice.reason}")

    def rematch(self) -> VariantChoice:
        for member in self._smaller.values():
            member.rematch()
        return super().rematch()

    def _member(self, number: int) -> Model:
        """The model of a bucket, loaded at its first request."""
        if number == len(self.buckets) - 1:
            return self
        member = self._smaller.get(number)
        if member is None:
            common: dict[str, Any] = {"weights": self._backend.weights, "turn": self._turn}
            made = Model(self.bundle.members[number], **self._options, **common)
            member = self._smaller.setdefault(number, made)  # another thread may have made it too
        return member

    def _way(self, inputs: Mapping[str, Any]) -> _Way:
        shapes = self._shapes(inputs)
        way = self._ways.get(shapes)
        if way is None or len(inputs) != len(self.inputs):
            way = self._found_way(inputs, shapes)
            if len(self._ways) < _MOST_KNOWN:
                self._ways[shapes] = way
        return way

    def _shapes(self, inputs: Any) -> tuple[tuple[int, ...], ...]:
        """In the order of the model's inputs; empty if the inputs are others."""
        try:
            return tuple(tuple(inputs[spec.name].shape) for spec in self.inputs)
        except (AttributeError, KeyError, TypeError):
            return ()

    def _sizes_of(self, inputs: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        fits = [spec.has_shape(shape) for spec, shape in zip(self.inputs, shapes, strict=bool(shapes))]
        if not shapes or not all(fits) or len(inputs) != len(self.inputs):
            self._interface.check_constants(inputs)
            raise BadRequest(f"the model takes {', '.join(map(str, self.inputs))}; given: {_text(inputs)}")
        sizes = self.axes.sizes(dict(zip((spec.name for spec in self.inputs), shapes, strict=True)))
        if not all(sizes.values()):
            raise BadRequest(f"{_text(inputs)} is empty; give at least one position along each axis")
        return sizes

    def _found_way(self, inputs: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> _Way:
        sizes = self._sizes_of(inputs, shapes)
        if sizes in self.bucket_sizes:
            return _Way(self.bucket_sizes.index(sizes), sizes, is_exact=True)
        holding = [at for at, held in enumerate(self.bucket_sizes) if all(held[each] >= sizes[each] for each in sizes)]
        if not holding:
            raise BadRequest(
                f"{_text(inputs)} is above {self.bundle.name}'s largest bucket: {self._larger_advice(sizes)}"
            )
        return _Way(holding[0], sizes, is_exact=False, server=server_of(self._servers[holding[0]], sizes))

    def _not_padded(self, inputs: Mapping[str, Any]) -> BadRequest:
        return BadRequest(
            f"no bucket of {self.bundle.name} has the shapes {_text(inputs)}, and nothing may be padded: "
            f"{self.padding.reason}; give the shapes of a bucket: {self._buckets_text()}; or let another runtime run "
            "them (fractune compete)"
        )

    def _larger_advice(self, sizes: Mapping[str, int]) -> str:
        can_split = self.axes.is_batch_first and BATCH in sizes
        also = ", load it with split='batch'," if can_split and not self._splits else ""
        return f"it has {self._buckets_text()}; shorten the inputs{also} or tune the model for a larger one"

    def _buckets_text(self) -> str:
        return "; ".join(", ".join(f"{symbol} {size}" for symbol, size in sizes.items()) for sizes in self.bucket_sizes)

    def _check_split(self, split: str) -> None:
        if not self.axes.is_batch_first or BATCH not in self.axes.symbols:
            raise BadRequest(
                f"split is '{split}', and the first axis of {self.bundle.name}'s inputs and outputs is no open batch; "
                "leave split out, or tune the model for several batches"
            )

    def _check_rows(self) -> None:
        """Raises BadRequest if rows of the largest batch have other outputs without the rows before or after them.

        The first axis may be a length too, or the model may compare rows.
        """
        number = max(range(len(self.buckets)), key=lambda each: self.bucket_sizes[each][BATCH])
        largest = self.bucket_sizes[number]
        most = largest[BATCH]
        smaller = [sizes[BATCH] for sizes in self.bucket_sizes if {**sizes, BATCH: most} == largest]
        count = max((batch for batch in smaller if batch < most), default=most - 1)
        inputs = self._member(number).random_inputs()
        whole = self.run(inputs)
        allowed = max(rounding(whole), (self.padding.max_rel_difference or 0.0) if self.padding.proved else 0.0)
        for rows in (slice(count), slice(most - count, most)):
            outputs = self.run({name: array[rows] for name, array in inputs.items()})
            if differences(outputs, [output[rows] for output in whole])[1] > allowed:
                raise BadRequest(
                    f"split is 'batch', and outputs of {self.bundle.name} depend on other rows of the batch; leave "
                    "split out, or tune the model for a larger one"
                )

    def _parts(self, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The inputs in parts of the largest batch; one part if the batch is no larger."""
        most = max(sizes[BATCH] for sizes in self.bucket_sizes)
        batch = max((value.shape[0] for value in inputs.values() if getattr(value, "shape", ())), default=0)
        return [
            {name: value[begin : begin + most] for name, value in inputs.items()} for begin in range(0, batch, most)
        ]


def _text(inputs: Any) -> str:
    """`ids [1, 300]`"""
    if not isinstance(inputs, Mapping):
        return type(inputs).__name__
    return ", ".join(f"{name} {_shape_text(each)}" for name, each in inputs.items()) or "nothing"


def _shape_text(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"is a Python {type(value).__name__}" if shape is None else str(list(shape))


def open_interface(bundle: Bundle) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """The inputs and outputs with None for each open axis."""
    found, axes = Interface(bundle), Buckets.from_json(bundle.manifest["buckets"]).axes
    return _open_specs(found.inputs, axes.inputs), _open_specs(found.outputs, axes.outputs)


def _open_specs(specs: Sequence[TensorSpec], axes: Mapping[str, Sequence[str | None]]) -> list[TensorSpec]:
    """The tensors with None for each open axis."""
    return [
        replace(
            spec, shape=tuple(None if symbol else dim for dim, symbol in zip(spec.shape, axes[spec.name], strict=True))
        )
        for spec in specs
    ]


def _real_part(
    outputs: Iterable[Array], specs: Sequence[TensorSpec], axes: OpenAxes, sizes: Mapping[str, int]
) -> list[Array]:
    """The outputs of padded inputs, without the positions of the padding, as separate arrays."""
    return [
        output[tuple(slice(sizes[symbol]) if symbol else slice(None) for symbol in axes.outputs[spec.name])].copy()
        for spec, output in zip(specs, outputs, strict=True)
    ]


def _concatenated(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """The outputs of parts of a batch as those of the whole batch."""
    import numpy as np

    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


@dataclass(frozen=True)
class ServesUpTo:
    """A runtime serves these sizes and smaller ones, by symbol."""

    sizes: Mapping[str, int]
    runtime: str
    threads: int


def server_of(points: Sequence[ServesUpTo], sizes: Mapping[str, int]) -> ServesUpTo | None:
    """What serves `sizes`: the nearest of the `points` above; None if the bundle does."""
    above = (each for each in points if all(each.sizes[symbol] >= size for symbol, size in sizes.items()))
    return min(above, key=lambda each: math.prod(each.sizes.values()), default=None)


def servers_between(
    bundle: Bundle, here: ShareHere, threads: int, goal: ServiceGoal
) -> tuple[list[list[ServesUpTo]], str]:
    """By member: the runtimes that serve sizes below its own. And a warning if one of them is not here in the version
    that was timed.
    """
    found: list[list[ServesUpTo]] = [[] for _ in bundle.members]
    at = compared_share(bundle, here, threads)
    if at is None:
        return found, ""
    missing: dict[str, str] = {}
    for points, member in zip(found, bundle.members, strict=True):
        for sizes, winner, why in _winners(bundle, member, at[0], goal):
            if winner.is_here:
                points.append(ServesUpTo(sizes, winner.runtime, at[1]))
            else:
                text = f"{winner.runtime} {winner.version} {why}, and {winner.missing}; {winner.advice}"
                missing.setdefault(winner.runtime, f"{bundle.name}: {text}")
    return found, "; ".join(missing.values())


def _winners(
    bundle: Bundle, member: Bundle, share: str, goal: ServiceGoal
) -> Iterator[tuple[dict[str, int], Winner, str]]:
    """Sizes, the runtime that serves them and smaller ones, and why."""
    held = Buckets.from_json(bundle.manifest["buckets"])
    if held.padding.proved:
        for each in between_of(member.manifest).get(share, []):
            winner = Winner.of(bundle, each.compared, goal)
            if winner is not None:
                yield each.sizes, winner, f"was {winner.factor} between shapes"
    elif MODEL in bundle.manifest["sha256"] and share in member.manifest.get("compared", {}):
        runtime = Compared.from_json(member.manifest["compared"][share]).fastest_other(goal)
        if runtime in bundle.manifest.get("runtimes", {}):
            sizes = held.axes.sizes(input_shapes(member.manifest))
            yield sizes, Winner.named(bundle, runtime, ""), "runs what lies between shapes and may not be padded"
