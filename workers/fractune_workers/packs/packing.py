"""A model becomes a pack: its operators, their candidates proposed and built here, to be measured on another machine.

The children are those of the fleet's compile, tune and build workers. Nothing is measured, so a search proposes its
first candidates, then what it would propose next; where the log knows times of the operator, it has learned from them.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fractune_core import __version__
from fractune_core.codec.plain_json import from_json
from fractune_core.errors import BadModel, some_of
from fractune_core.files.new_bundle import replacing_file
from fractune_core.files.packs import ANCHOR, FORMAT, LOOP, PackedOperator, PackManifest, write_pack
from fractune_core.fleet.messages import CandidateItem, OperatorItem, PastTrial
from fractune_core.jobs import is_among
from fractune_core.records import UNTUNED, ArtifactItem, Status, candidate_id
from fractune_core.targets import with_cores
from fractune_workers.builder_process import LIMIT_CPU_S, BuilderProcess, build_failure
from fractune_workers.calibration.candidates import BuildCores, ChildThread, running
from fractune_workers.child import Child
from fractune_workers.child.errors import CALL_ERRORS, retry_if_killed
from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
from fractune_workers.reader import reader_child

_INGEST_TIMEOUT_S = 600.0
_SEARCH_TIMEOUT_S = 300.0
_LIMIT_UNTUNED_CPU_S = 60
_THREADS_AT_MOST = 8
_GPU = re.compile(r"sm_\d+[af]?")

Progress = Callable[[str], None]
History = Callable[[str, str], list[PastTrial]]
"""earlier trials of an operator, by workload hash and target key"""


@dataclass(frozen=True)
class PackOptions:
    """What to pack."""

    model: Path
    out: Path
    target: str = ""
    """as users write it; empty = this host's CPU"""
    candidates: int = 48
    """proposals for each operator, beside its untuned default"""
    cores: int = 1
    """of the largest CPU share that will be measured: the search divides loops for so many"""
    only: str = ""
    """only operators with one of these texts, separated by commas, in their names"""
    inputs: dict[str, list[int]] = field(default_factory=dict)
    seed: int = 0


def make_pack(options: PackOptions, history: History, progress: Progress) -> dict[str, Any]:
    """Write the pack, and return its numbers as plain JSON values. Raises BadModel, BadRequest, StateUnusable."""
    cores = sorted(os.sched_getaffinity(0))
    build_cores = BuildCores(CoreLocks(default_lock_dir()), cores)
    target, target_key, items = _ingested(options, build_cores)
    target = with_cores(target, options.cores)
    progress(f"{len(items)} operators of {options.model.name}: {options.candidates} candidates each")
    with contextlib.ExitStack() as held:
        builders = [held.enter_context(running(_Builder(target, build_cores))) for _ in cores[:_THREADS_AT_MOST]]
        search = _Search(target, target_key, options.seed, build_cores)
        held.callback(search.child.stop)
        facts = builders[0].host_facts().result()
        operators: list[PackedOperator] = []
        codes: dict[str, bytes] = {}
        for item in items:
            learned = history(item.workload_hash, target_key)
            traces = [UNTUNED, *search.proposed(item, options.candidates, learned)]
            operators.append(_built(item, target_key, traces, builders, codes))
            ready = sum(each.status is Status.OK for each in operators[-1].candidates)
            learned_text = f", the search knew {len(learned)}" if learned else ""
            progress(f"{item.name}: {ready} of {len(traces)} candidates built{learned_text}")
    manifest = PackManifest(
        FORMAT,
        options.model.name,
        target,
        target_key,
        len(operators),
        facts["architecture"],
        facts["features"],
        {"tvm": facts["tvm"], "fractune": __version__},
    )
    kernels = {name: code for name, code in ((ANCHOR, facts["anchor"]), (LOOP, facts["loop"])) if code}
    with replacing_file(options.out) as file:
        write_pack(file, manifest, operators, codes, kernels)
    return {
        "event": "pack",
        "path": str(options.out),
        "target": target,
        "operators": len(operators),
        "candidates": sum(len(each.candidates) for each in operators),
        "built": len(codes),
        "bytes": options.out.stat().st_size,
    }


def _ingested(options: PackOptions, build_cores: BuildCores) -> tuple[str, str, list[OperatorItem]]:
    """The target, its key, and the chosen operators: the one with most to compute in a run of the model first."""
    found = _GPU.search(options.target)
    given = {"inputs": options.inputs, "target": options.target, "isa": found[0] if found else ""}
    child = reader_child("fractune_workers.children.compiling.child", model=options.model)
    try:
        with build_cores.computing(child):
            answer = child.call("ingest", _INGEST_TIMEOUT_S, path=str(options.model.absolute()), **given)
    except CALL_ERRORS as error:
        raise BadModel(f"{options.model.name} could not be read: {error}") from error
    finally:
        child.stop()
    items = from_json(list[OperatorItem], answer["operators"])
    chosen = [item for item in items if is_among(options.only, item.name)]
    if not chosen:
        names = some_of(sorted(item.name for item in items))
        raise BadModel(f"no operator's name contains '{options.only}'; {options.model.name} has {names}")
    chosen.sort(key=lambda item: item.weight * max(item.flops, item.io_bytes), reverse=True)
    return answer["target"], answer["target_key"], chosen


class _Search:
    """The child of a tuner instance."""

    def __init__(self, target: str, target_key: str, seed: int, build_cores: BuildCores) -> None:
        threads = min(len(build_cores.cores), _THREADS_AT_MOST)
        self.child = Child("fractune_workers.children.searching.child", [str(threads)])
        self._target = target
        self._target_key = target_key
        self._seed = seed
        self._build_cores = build_cores

    def proposed(self, item: OperatorItem, count: int, history: Sequence[PastTrial]) -> list[str]:
        """The texts of up to `count` candidates; fewer when the operator's space holds no more."""
        with self._build_cores.computing(self.child):
            found = retry_if_killed(lambda: self._propose(item, count, history))
        return [each.trace for each in from_json(list[CandidateItem], found)]

    def _propose(self, item: OperatorItem, count: int, history: Sequence[PastTrial]) -> Any:
        named = {"workload_hash": item.workload_hash, "target_key": self._target_key}
        opened = {"workload": item.workload, "target": self._target, "seed": self._seed}
        self.child.call(
            "open",
            _SEARCH_TIMEOUT_S,
            **named,
            **opened,
            history=[{"candidate": each.candidate, "trace": each.trace, "secs": each.secs} for each in history],
            transferred=[],
        )
        shares = sorted({share for each in history for share in each.secs})
        self.child.call("learn", _SEARCH_TIMEOUT_S, **named, results=[], shares=shares)
        return self.child.call("propose", _SEARCH_TIMEOUT_S, **named, count=count)


class _Builder:
    """A builder's child, and the thread that it belongs to."""

    def __init__(self, target: str, build_cores: BuildCores) -> None:
        self._target = target
        self._build_cores = build_cores
        self._process = BuilderProcess()
        self.thread = ChildThread(self._process.stop)

    def host_facts(self) -> Future[dict[str, Any]]:
        """As of the child's `host_facts`."""
        return self.thread.submit(lambda: self._process.host_facts(self._target))

    def learn(self, item: OperatorItem) -> Future[list[Any]]:
        """The operator's arguments."""
        return self.thread.submit(lambda: retry_if_killed(lambda: self._learn(item)))

    def build(self, item: OperatorItem, candidate: str, trace: str) -> Future[tuple[ArtifactItem, bytes]]:
        """The candidate and its code; a failed build is a result too, without code."""
        return self.thread.submit(lambda: self._build(item, candidate, trace))

    def _build(self, item: OperatorItem, candidate: str, trace: str) -> tuple[ArtifactItem, bytes]:
        limit_cpu_s = _LIMIT_UNTUNED_CPU_S if trace == UNTUNED else LIMIT_CPU_S

        def build() -> tuple[ArtifactItem, bytes]:
            self._learn(item)
            built = self._process.build(item.workload_hash, self._target, trace, limit_cpu_s)
            facts = (built.status, built.cause, built.build_secs, built.versions)
            return ArtifactItem(candidate, trace, *facts), built.code

        try:
            with self._build_cores.computing(self._process.child):
                return retry_if_killed(build)
        except CALL_ERRORS as error:
            return ArtifactItem(candidate, trace, *build_failure(error)), b""

    def _learn(self, item: OperatorItem) -> list[Any]:
        return self._process.learn(item.workload_hash, self._target, lambda: item.workload)


def _built(
    item: OperatorItem, target_key: str, traces: Sequence[str], builders: Sequence[_Builder], codes: dict[str, bytes]
) -> PackedOperator:
    """The operator with all candidates built; their code is added to `codes`."""
    pending = [
        builder.build(item, candidate_id(item.workload_hash, target_key, trace), trace)
        for builder, trace in zip(_round_robin(builders), traces, strict=False)
    ]
    candidates = []
    for each in pending:
        candidate, code = each.result()
        candidates.append(candidate)
        if code:
            codes[candidate.candidate] = code
    arguments = builders[0].learn(item).result()
    return PackedOperator(item.name, item.workload_hash, item.workload, item.weight, arguments, candidates)


def _round_robin(builders: Sequence[_Builder]) -> Iterator[_Builder]:
    while True:
        yield from builders
