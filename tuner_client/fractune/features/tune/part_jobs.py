"""Tuning a model that the importer refuses in part: a job for each part that it can import, and one bundle of all."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fractune.features.parts.parts import Parts, cut_model, join_parts
from fractune.features.tune.bundle import BundleFile
from fractune.features.tune.result import TuneResult
from fractune.sessions.progress import View
from fractune.sessions.running import run_job
from fractune.sessions.session import PlaceOptions, tuning_session
from fractune_core.errors import BadModel
from fractune_core.jobs import JobSpec
from fractune_core.model_inputs import shapes_in
from fractune_core.refusals import RefusedNode, refused_node

_MOST_CUTS = 12
"""A refusal names one node, or all of some operators; each costs a job that ends within seconds"""


def tune_parts(
    model: Path,
    spec: JobSpec,
    refusal: BadModel,
    written: Path,
    where: PlaceOptions,
    view: View,
) -> TuneResult:
    """Tune what can be imported of the model, and write a bundle in which ONNX Runtime runs the rest.

    Raises what `fractune.tune` raises; the `refusal` of the whole model if it cannot be cut.
    """
    refusals = [refusal]
    with tuning_session(where, spec.shares) as place, view:
        for _ in range(_MOST_CUTS):
            with tempfile.TemporaryDirectory(prefix="fractune-parts-") as folder:
                parts = _cut(model, spec, refusals, Path(folder))
                view.show_step(f"{refusals[-1]}; ONNX Runtime runs {len(parts.others)} of {len(parts.files)} parts")
                try:
                    jobs = [run_job(place, file, each, view) for file, each in _jobs(parts, spec)]
                except BadModel as error:
                    refusals.append(error)
                    continue
                bundles = []
                for number, job in enumerate(jobs):
                    bundles.append(Path(folder) / f"{number}.fractune")
                    place.client.download_bundle(job.bundle, bundles[-1])
                join_parts(model, parts, bundles, written)
                measurers = place.client.measurers() if place.is_own else {}
            bundle = BundleFile(written, jobs[0].name)
            return TuneResult(jobs[0], bundle, measurers, jobs=tuple(jobs), stages=parts.stages)
    raise refusal


def _cut(model: Path, spec: JobSpec, refusals: Sequence[BadModel], folder: Path) -> Parts:
    """Raises BadModel with the first refusal if the model cannot be cut."""
    nodes: list[RefusedNode] = []
    for each in refusals:
        node = refused_node(str(each))
        if node is None or node in nodes:  # cut out, and refused all the same
            raise each
        nodes.append(node)
    try:
        return cut_model(model, shapes_in(spec.inputs), nodes, folder)
    except BadModel as error:
        raise BadModel(f"{refusals[0]}; and ONNX Runtime cannot run a part of the model: {error}") from error


def _jobs(parts: Parts, spec: JobSpec) -> Iterator[tuple[Path, JobSpec]]:
    """The file and the job of each part; the parts have equal budgets."""
    count = len(parts.own)
    for file in parts.own:
        yield (
            file,
            replace(
                spec,
                model_name=file.name,
                inputs={},
                check_inputs="",  # they are the whole model's
                trials=math.ceil(spec.trials / count),
                extra_trials=math.ceil(spec.extra_trials / count),
                minutes=spec.minutes / count,
            ),
        )
