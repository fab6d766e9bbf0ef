"""Jobs: what a user asks for (`JobSpec`), where it stands (`JobState`), and the operators it is about."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Self, TypedDict, Unpack

from fractune_core.codec.plain_json import In, JsonObject
from fractune_core.errors import BadRequest, ShareUnavailable, shortened
from fractune_core.model_inputs import Inputs, as_shapes
from fractune_core.names import ROBUST_VARIANT, Collection
from fractune_core.shares import Share, share_names, with_kernel_shares
from fractune_core.targets import check_target

_SHOWN = 100
"""characters of a wrong namespace in a message"""
_NAMESPACE = re.compile(r"[0-9A-Za-z._-]{1,64}")


class JobState(StrEnum):
    """Where a job stands; the last three are ends."""

    QUEUED = "queued"
    INGESTING = "ingesting"
    TUNING = "tuning"
    VALIDATING = "validating"
    """the finalists are checked for right output and measured again, alone"""
    COMPILING = "compiling"
    TIMING = "timing"
    """the whole model is timed at every share"""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        return self not in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


class Priority(StrEnum):
    """Words for the numbers in which the public contract has priorities: below 0, 0, above 0."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def number(self) -> int:
        return list(Priority).index(self) - 1

    @property
    def weight(self) -> int:
        """Measurements that a job gets for each one that a job of low priority gets."""
        return _WEIGHTS[self]

    @classmethod
    def of(cls, number: int) -> Priority:
        if number == 0:
            return cls.NORMAL
        return cls.HIGH if number > 0 else cls.LOW

    @classmethod
    def parse(cls, text: str) -> Priority:
        """Raises BadRequest."""
        try:
            return cls(text)
        except ValueError:
            raise BadRequest(f"priority is '{text}'; write {', '.join(Priority)}") from None


_WEIGHTS = {Priority.LOW: 1, Priority.NORMAL: 4, Priority.HIGH: 16}


class LogOptions(TypedDict, total=False):
    """The options of a job that reads the log and searches nothing, described at the fields of `JobSpec`."""

    target: str
    namespace: str


class SearchOptions(LogOptions, total=False):
    """The options of a job but its inputs. None is as good as left out."""

    trials: int | None
    extra_trials: int | None
    minutes: float | None
    round_size: int
    only: str
    seed: int
    priority: str
    """a word of `Priority`"""
    rerank: int | None
    exact: bool
    fresh: bool
    check_inputs: str | os.PathLike[str] | None
    """a path"""


class JobOptions(SearchOptions, total=False):
    """The options of a job as callers give them."""

    inputs: Inputs | None


@dataclass(frozen=True)
class JobSpec(JsonObject):
    """A request: a model, a target, a set of shares, a budget, a priority."""

    model: Annotated[str, In("model", Collection.MODELS)]
    """SHA-256 of the model file, 64 hex digits"""
    model_name: str
    shares: tuple[str, ...]
    inputs: dict[str, list[int]] = field(default_factory=dict)
    """shapes for the inputs whose dimensions the model leaves open. A key `NAME=const:NUMBERS` with an empty shape
    makes the input a constant; its shape may stand beside it (`model_inputs.py`)."""
    target: str = ""
    """TVM's target as text; empty = the measuring worker's own processor"""
    trials: int = 256
    """candidates to have measured over all operators, including those already in the log. 0 = only the first
    candidate of each operator that the log lacks
    """
    extra_trials: Annotated[int, In("more")] = 0
    """candidates to measure beyond what the log holds; replaces `trials` when above 0"""
    minutes: float = 0.0
    """stop searching after this long; 0 = no limit"""
    round_size: int = 64
    """candidates of a round at most; an operator's first rounds are smaller"""
    only: str = ""
    """tune just the operators whose name contains this, or one of several texts separated by commas; empty = all"""
    seed: int = 0
    priority: int = 0
    """below 0 low, 0 normal, above 0 high: `Priority`"""
    rerank: int = 0
    """above 0: search nothing; of every share that the log knows, the published winner and so many of the fastest
    trials are measured at this job's shares"""
    variants: str = ""
    """of the bundle: empty for one a share, and the robust one; ROBUST_VARIANT for that one only"""
    exact: bool = False
    """no implementation of an operator that rounds otherwise than the operator itself"""
    namespace: str = ""
    """jobs of one namespace share searches, measurements and the log; empty = the server's, the one of all jobs that
    name none"""
    fresh: bool = False
    """reads nothing that another job measured, and shares no search with one; what it measures others may read"""
    check_inputs: str = ""
    """`models/SHA256` of an uploaded .npz file, on whose arrays the bundle is compared with its model too; until it is
    uploaded the path of the file; empty = none"""
    skipped_shares: dict[str, str] = field(default_factory=dict)
    """shares that the caller wanted too and that could not be verified, each with the cause"""

    @classmethod
    def requested(
        cls, model_name: str, shares: str | Sequence[str], *, variants: str = "", **options: Unpack[JobOptions]
    ) -> Self:
        """The job that a caller asks for, checked; the digest of the model is still missing.

        `shares` is `"cpu:1,cpu:2"` or a list of shares. Raises BadRequest.
        """
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        for name in ("extra_trials", "minutes", "rerank"):
            if name in given and not given[name] > 0:
                raise BadRequest(f"{name} is {given[name]}; it must be above 0, or left out")
        if "trials" in given and "extra_trials" in given:
            raise BadRequest(
                f"trials is {given['trials']}, which includes the log, and extra_trials is {given['extra_trials']}, "
                "beyond the log; give one of them"
            )
        given["priority"] = Priority.parse(given.get("priority", Priority.NORMAL)).number
        given["inputs"] = as_shapes(given.get("inputs", {}))
        given["check_inputs"] = os.fspath(given.get("check_inputs", ""))
        spec = cls(model="", model_name=model_name, shares=share_names(shares), variants=variants, **given)
        spec.check()
        return spec

    def without(self, skipped: Mapping[str, str]) -> Self:
        """The job at the shares that are not in `skipped`, which has the causes, and need no kernels of one that is.

        Raises ShareUnavailable if none is left.
        """
        needed = {share: (share, *with_kernel_shares([share])) for share in self.shares}
        gone = {share: skipped[name] for share, names in needed.items() for name in names if name in skipped}
        left = tuple(share for share in self.shares if share not in gone)
        if not left:
            raise ShareUnavailable("; ".join(dict.fromkeys(gone.values())))
        return replace(self, shares=left, skipped_shares=gone) if gone else self

    @property
    def ranges(self) -> tuple[str, ...]:
        """The shares that are ranges: one variant is to serve all of each."""
        return tuple(share for share in self.shares if Share.parse(share).ends)

    def wants(self, operator: str) -> bool:
        """True when the operator of this name is to be tuned."""
        return is_among(self.only, operator)

    def check(self) -> None:
        """Raises BadRequest for a target, a budget, a round, a namespace or a share that cannot be meant."""
        self._check_sharing()
        check_target(self.target)
        if self.trials < 0:
            raise BadRequest(f"trials is {self.trials}; it must be at least 1, or 0 for first candidates alone")
        if self.round_size <= 0:
            raise BadRequest(f"round_size is {self.round_size}; it must be at least 1")
        if self.extra_trials < 0:
            raise BadRequest(f"extra_trials is {self.extra_trials}; it must be at least 1, or 0 to leave it out")
        if self.rerank < 0:
            raise BadRequest(f"rerank is {self.rerank}; it must be at least 1, or 0 to search")
        if self.rerank and (self.extra_trials or self.minutes):
            raise BadRequest(
                f"rerank is {self.rerank}, which searches nothing; leave extra_trials and minutes out, or rerank"
            )
        if self.variants not in ("", ROBUST_VARIANT):
            raise BadRequest(f"variants is '{self.variants}'; write {ROBUST_VARIANT}, or leave it out for one a share")
        if not 0 <= self.minutes < math.inf:
            raise BadRequest(f"minutes is {self.minutes}; it must be above 0, or 0 for no limit")
        if not self.shares:
            raise BadRequest("no share named; name at least one, such as cpu:1")
        self._check_shares()

    def _check_shares(self) -> None:
        by_kind = {}
        for share in map(Share.parse, (*self.skipped_shares, *self.shares)):
            by_kind[share.device_kind] = share
        if len(by_kind) > 1:
            raise BadRequest(
                f"share '{by_kind['cpu']}' is of a CPU, '{by_kind['cuda']}' of a GPU, and a job is for one processor; "
                "make a job for each"
            )
        named = share_names(self.shares)
        if named != tuple(self.shares):
            raise BadRequest(f"shares {shortened(str(list(self.shares)), _SHOWN)}: write them as {', '.join(named)}")

    def _check_sharing(self) -> None:
        if self.namespace and not _NAMESPACE.fullmatch(self.namespace):
            raise BadRequest(
                f"namespace '{shortened(self.namespace, _SHOWN)}': write at most 64 letters, digits, '.', '_' and '-'"
            )
        if self.fresh and self.rerank:
            raise BadRequest(f"rerank is {self.rerank}, which reads the log; leave it out, or fresh")


@dataclass(frozen=True)
class OperatorTask(JsonObject):
    """A workload in a model, with its weight: how often it occurs. An alternative to several others, which the model
    may run in their place, has the weight 0, so that no sum over operators counts the same work twice.
    """

    workload_hash: str
    name: Annotated[str, In("display_name")]
    weight: int


def is_among(only: str, operator: str) -> bool:
    """Whether the operator's name contains one of the texts in `only`, separated by commas; no text = any operator."""
    texts = [text.strip() for text in only.split(",") if text.strip()]
    return not texts or any(text in operator for text in texts)
