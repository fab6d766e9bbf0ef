"""What a bundle holds of its comparisons with other runtimes and of the check of its outputs, and what the log holds of
their times.
"""

import contextlib
import socket
import time
import uuid
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.server.job_status import JobStatus
from fractune.text.rendering import Column, Table
from fractune.text.text import disturbed_notes, estimate_text, marked_time, moment_text
from fractune_core.analysis.model_times import RuntimeTime
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import one_line
from fractune_core.files.buckets import Buckets, input_shapes, shape_text, sizes_text
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import ONNX_RUNTIME, OURS, Between, Checked, Compared, Runtime, between_of
from fractune_core.files.manifests import checked_of
from fractune_core.served import is_disturbed


@dataclass(frozen=True)
class Contest:
    """One shape at one share."""

    shape: str
    """of a bundle for several shapes, or sizes between two of them, at which it pads; empty for any other"""
    share: str
    compared: Compared

    @property
    def others_cores(self) -> float:
        """that other programs had meanwhile, on average"""
        return self.compared.others_cores


@dataclass(frozen=True)
class CompeteResult:
    """The contests of a bundle, which it holds now."""

    path: Path
    contests: tuple[Contest, ...]
    shares: tuple[str, ...] = ()
    """those that were timed by this call; the bundle may hold more"""

    @property
    def table(self) -> Table:
        """A row for each contender at each share."""
        return _table(self.path.name, self.contests, self.refusals)

    @property
    def served(self) -> str:
        """`onnxruntime at cpu:1, cpu:2`, or `onnxruntime for up to length 17 at cpu:1` if the bundle is for several
        shapes: other runtimes by which the bundle runs the model; empty if there are none.
        """
        places: dict[str, list[str]] = {}
        for each in self.contests:
            for name in sorted(each.compared.winners):
                place = f"for {each.shape} at {each.share}" if each.shape else each.share
                places.setdefault(name, []).append(place)
        at = "" if any(each.shape for each in self.contests) else "at "
        return "; ".join(f"{name} {at}{', '.join(dict.fromkeys(found))}" for name, found in places.items())

    @property
    def refusals(self) -> tuple[str, ...]:
        """A line for each runtime that could not run the model."""
        return tuple(
            f"note: {runtime} does not compete at {each.share}: {why}"
            for each in self.contests
            for runtime, why in each.compared.refused.items()
        )

    def measured(self) -> list[RuntimeTime]:
        """What `Client.add_runtime_times` puts into the log. Each call makes other ones. Raises BadBundle."""
        return list(_times(self.path, self.shares))


def held_contests(path: Path) -> CompeteResult:
    """The contests that the bundle at `path` holds. Raises BadBundle."""
    return CompeteResult(path, tuple(_contests(path)))


def _contests(path: Path) -> Iterator[Contest]:
    with contextlib.closing(Bundle(path)) as bundle:
        several = "buckets" in bundle.manifest
        for number, each in enumerate(bundle.members if several else [bundle]):
            shape = shape_text(input_shapes(each.manifest)) if several else ""
            between = between_of(each.manifest)
            for share, compared in each.manifest.get("compared", {}).items():
                yield from _between(bundle, number, share, between.get(share, ()))
                yield Contest(shape, share, Compared.from_json(compared))


def _between(bundle: Bundle, member: int, share: str, found: Sequence[Between]) -> Iterator[Contest]:
    """Of the sizes along each axis the largest at which a runtime was faster; else the smallest."""
    if not found:
        return
    axes = Buckets.from_json(bundle.manifest["buckets"]).axes
    whole = axes.sizes(input_shapes(bundle.members[member].manifest))
    for symbol in whole:
        along = [each for each in found if each.sizes[symbol] != whole[symbol]]
        won = [each for each in along if each.compared.winners]
        if along:
            shown = max(won, key=lambda each: each.sizes[symbol]) if won else along[0]
            yield Contest(f"up to {sizes_text(shown.sizes)}", share, shown.compared)


def _table(name: str, contests: Sequence[Contest], refusals: Sequence[str]) -> Table:
    """A row for each contender at each share: its times, and the bundle's time over its time with the interval."""
    shaped = any(each.shape for each in contests)
    columns = (
        *([Column("shape", wraps_at=24)] if shaped else []),
        *(Column("share"), Column("runtime"), Column("in a loop", numbers=True), Column("paced", numbers=True)),
        *(Column("bundle over it, loop", numbers=True), Column("paced", numbers=True)),
        *(Column("differs", numbers=True, dispensable=1), Column("serves")),
    )
    cells = tuple(row for each in contests for row in _rows(each, shaped=shaped))
    unproved = (
        f"note: nothing shows at {each.share} that the outputs agree: they are {each.compared.unproved}"
        for each in contests
        if each.compared.unproved
    )
    notes = (*disturbed_notes(contests), *unproved, *refusals)
    return Table(title=f"{name} beside other runtimes", columns=columns, cells=cells, notes=notes)


def _rows(each: Contest, *, shaped: bool) -> Iterator[tuple[str, ...]]:
    serves = {goal: each.compared.winner(goal) for goal in ("latency", "throughput")}
    timed_ones = dict(each.compared.times)
    if each.compared.by_default is not None:
        timed_ones[f"{ONNX_RUNTIME}, its defaults"] = each.compared.by_default
    for name, timed in timed_ones.items():
        goals = [goal for goal, winner in serves.items() if winner == name]
        ratios = ("-", "-") if name == OURS else (_ratio(timed.loop), _ratio(timed.paced))
        differs = "-" if timed.difference is None else f"{timed.difference:.0e}"
        at_most = is_disturbed(each.others_cores)
        times = (marked_time(secs, at_most=at_most) for secs in (timed.loop_s, timed.paced_s))
        yield (*([each.shape] if shaped else []), each.share, name, *times, *ratios, differs, ", ".join(goals) or "-")


def _ratio(found: tuple[float, float, float] | None) -> str:
    return estimate_text(None if found is None else Estimate(*found))


def _times(path: Path, shares: Sequence[str]) -> Iterator[RuntimeTime]:
    """Those of other runtimes at the `shares`, as a log keeps them, each under a name of its own."""
    with contextlib.closing(Bundle(path)) as bundle:
        runtimes = bundle.manifest.get("runtimes", {})
        for each in bundle.members if "buckets" in bundle.manifest else [bundle]:
            for share in each.manifest.get("compared", {}).keys() & set(shares):
                compared = Compared.from_json(each.manifest["compared"][share])
                ours = compared.times[OURS]
                for name in compared.times:
                    timed = compared.as_programs_have(name)
                    if timed.loop is None or timed.paced is None:
                        continue
                    yield RuntimeTime(
                        time_id=uuid.uuid4().hex,
                        model=bundle.manifest["model"]["sha256"],
                        inputs=input_shapes(each.manifest),
                        share=share,
                        runtime=name,
                        version=Runtime.from_json(runtimes[name]).version,
                        loop_s=timed.loop_s,
                        paced_s=timed.paced_s,
                        bundle_loop_s=ours.loop_s,
                        bundle_paced_s=ours.paced_s,
                        loop_ratio=Estimate(*timed.loop),
                        paced_ratio=Estimate(*timed.paced),
                        host=socket.gethostname(),
                        measured_at=time.time(),
                        others_cores=compared.others_cores,
                    )


def contest_events(found: CompeteResult) -> Iterator[dict[str, Any]]:
    """The event `compared` of each shape and share."""
    return map(_json, found.contests)


def _json(each: Contest) -> dict[str, Any]:
    serves = {goal: each.compared.winner(goal) for goal in ("latency", "throughput")}
    shape = each.shape or None
    return {"event": "compared", "shape": shape, "share": each.share, **each.compared.to_json(), "serves": serves}


_HOW = (
    "the runtime and the bundle of that time, interleaved, both confined to the share; paced: with pauses",
    "bundle over it: the bundle's time over the runtime's, with the 95 % interval; above 1 the runtime is faster",
)


def newest_times(times: Sequence[RuntimeTime]) -> list[RuntimeTime]:
    """Of times that come newest first, one for each runtime at each share and shape."""
    found: dict[Hashable, RuntimeTime] = {}
    for each in times:
        found.setdefault((shape_text(each.inputs), each.share, each.runtime), each)
    return [found[key] for key in sorted(found, key=str)]


def times_of_job(job: JobStatus, times: Sequence[RuntimeTime]) -> list[RuntimeTime]:
    """The newest at the job's shares, with inputs of the shapes that the job gives."""
    return newest_times([each for each in times if each.share in job.tuned_at and _has_shapes(each, job)])


def _has_shapes(each: RuntimeTime, job: JobStatus) -> bool:
    return all(each.inputs.get(name) == list(shape) for name, shape in job.spec.inputs.items() if shape)


def runtimes_table(times: Sequence[RuntimeTime]) -> Table:
    """A row for each."""
    columns = (
        *(Column("inputs", wraps_at=24), Column("share"), Column("runtime")),
        *(
            Column("in a loop", numbers=True),
            Column("the bundle", numbers=True),
            Column("bundle over it", numbers=True),
        ),
        *(Column("paced", numbers=True), Column("the bundle", numbers=True), Column("bundle over it", numbers=True)),
        *(Column("host", dispensable=1), Column("measured", dispensable=2)),
    )
    cells = tuple(
        (
            *(one_line(shape_text(each.inputs)), each.share, one_line(f"{each.runtime} {each.version}")),
            *(_time(each, each.loop_s), _time(each, each.bundle_loop_s), estimate_text(each.loop_ratio)),
            *(_time(each, each.paced_s), _time(each, each.bundle_paced_s), estimate_text(each.paced_ratio)),
            *(one_line(each.host), moment_text(each.measured_at)),
        )
        for each in times
    )
    return Table(title="Other runtimes", columns=columns, cells=cells, notes=(*_HOW, *disturbed_notes(times)))


def _time(each: RuntimeTime, secs: float) -> str:
    return marked_time(secs, at_most=is_disturbed(each.others_cores))


_UNKNOWN = Checked(reason="the bundle does not say; 'fractune compete' compares them")


def checks_of(path: Path) -> list[Checked]:
    """That of the bundle, or of each member of a joined one in their order. Raises BadBundle."""
    with contextlib.closing(Bundle(path)) as bundle:
        return [checked_of(each.manifest) or _UNKNOWN for each in bundle.members or [bundle]]


def checked_lines(path: Path) -> list[str]:
    """A line for the bundle, or for each member of a joined one. Raises BadBundle."""
    lines = [each.line for each in checks_of(path)]
    with contextlib.closing(Bundle(path)) as bundle:
        if "stages" in bundle.written:
            return [f"own part {number}: {line}" for number, line in enumerate(lines, 1)]
        shapes = [
            ", ".join(f"{name} {shape}" for name, shape in input_shapes(each.manifest).items())
            for each in bundle.members
        ]
    return [f"{shape}: {line}" for shape, line in zip(shapes, lines, strict=True)] if shapes else lines


def checked_json(path: Path) -> list[dict[str, Any]]:
    """As `checks_of`."""
    return [each.to_json() for each in checks_of(path)]
