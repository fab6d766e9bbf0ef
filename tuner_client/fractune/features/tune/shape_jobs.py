"""Tuning by several jobs, one after another, and one bundle of all: a job for each shape, or each part of a model.

The largest shape comes first, with the whole budget. Each further one starts from the schedules of those before it, and
gets a part of the budget. A model that the importer refuses in part has a job for each part that it can import.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from fractune.features.parts.parts import Parts, cut_model, join_parts, with_remedy
from fractune.features.shapes.join import check_pad_names, check_padding_error, join
from fractune.features.tune.bundle import BundleFile
from fractune.features.tune.result import TuneResult
from fractune.models.source import ModelSource, check_arrays, model_file, onnx_dtypes
from fractune.server.job_status import JobStatus
from fractune.server.rpc import RpcClient, submit
from fractune.sessions.progress import View
from fractune.sessions.session import PlaceOptions, Workplace, run_job, tuning_session
from fractune_core.errors import BadModel, BadRequest, FractuneError
from fractune_core.files.buckets import shape_text
from fractune_core.files.fused import is_fused
from fractune_core.files.new_bundle import NewBundle
from fractune_core.files.onnx_file import MOST_PARSED_BYTES
from fractune_core.jobs import JobOptions, JobSpec, SearchOptions
from fractune_core.model_inputs import Inputs, SeveralShapes, as_shapes, each_shape, shapes_in
from fractune_core.operators import RefusedNode, refused_node
from fractune_core.pb import fractune_pb2 as pb

_PART = 0.2
"""of the budget for each shape but the first: four shapes take 1.6 budgets"""


@dataclass(frozen=True)
class JoinOptions:
    """The options of `fractune.join` that a tuning takes."""

    pad: Mapping[str, float] | None = None
    padding_error: float = 0.0

    def check(self, shapes: int, model: Path) -> None:
        """Raises BadRequest for options without effect, and for those that the join at the end would refuse. A model
        that cannot be read here is left to it.
        """
        if shapes == 1 and (self.pad or self.padding_error):
            raise BadRequest(
                "--pad and --padding-error are for several shapes; give an input several, or leave them out"
            )
        check_padding_error(self.padding_error)
        if self.pad:
            _check_pad(model, self.pad)


def _check_pad(model: Path, pad: Mapping[str, float]) -> None:
    from fractune_runtime.tvm_runtime.tensors import TensorSpec
    from fractune_runtime.tvm_runtime.variants import check_pad

    try:
        dtypes = onnx_dtypes(model)
    except FractuneError:  # no ONNX file, or no package to read it
        return
    if not dtypes:  # a file of another format may be read as an empty model
        return
    check_pad_names(pad, dtypes)
    check_pad([TensorSpec(name, dtype, ()) for name, dtype in dtypes.items() if name in pad], pad)


def options_by_shape(options: SearchOptions, inputs: SeveralShapes | None) -> list[JobOptions]:
    """The options of the job of each shape, in the order of the jobs: the largest inputs first. Raises BadRequest."""
    shapes = each_shape(inputs or {})
    if len(shapes) == 1:
        return [{**options, "inputs": shapes[0]}]
    ordered = sorted(shapes, key=_elements, reverse=True)
    rest: SearchOptions = {**options, **_part_of_budget(options)}
    return [{**(rest if number else options), "inputs": inputs} for number, inputs in enumerate(ordered)]


def submit_each(
    client: RpcClient,
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    inputs: SeveralShapes,
    run_script: bool,
    greedy: bool,
    **options: Unpack[SearchOptions],
) -> Iterator[pb.Job]:
    """Submit the job of each shape in `inputs`, which leave nothing open. Raises as `Client.submit`."""
    with model_file(model, run_script=run_script, inputs=inputs, greedy=greedy) as path:
        for each in options_by_shape(options, inputs):
            spec = JobSpec.requested(path.name, shares, **each)
            check_arrays([spec], path)
            yield submit(client, path, spec)


def check_several(model: Path, option: str | None) -> None:
    """Raises BadRequest for what cannot be tuned for several shapes."""
    if option is not None:
        raise BadRequest(f"--until-beats {option}: it compares one shape; give one, or leave it out")
    if is_fused(model):
        raise BadRequest(f"{model.name} is a fused model, which has one shape; give one")


def tune_shapes(
    model: Path, specs: Sequence[JobSpec], options: JoinOptions, written: NewBundle, where: PlaceOptions, view: View
) -> TuneResult:
    """Run the jobs in their order, and join their bundles in the file `written`.

    A job that ended stays in the log: the same call again measures nothing twice. Raises what `fractune.tune` raises.
    """
    with tempfile.TemporaryDirectory(prefix="fractune-shapes-") as folder:
        jobs, bundles = [], []
        with tuning_session(where, specs[0].shares) as place, view:
            for number, spec in enumerate(specs, 1):
                view.show_step(f"shape {number} of {len(specs)}: {shape_text(shapes_in(spec.inputs))}")
                job = _run(place, model, spec, view)
                bundle = Path(folder) / f"{number}.fractune"
                place.client.download_bundle(job.bundle, NewBundle(bundle))
                jobs.append(job)
                bundles.append(bundle)
            measurers = place.client.measurers() if place.is_own else {}
        out, force = written.path, written.force
        # ONNX Runtime, with which sizes between the shapes are compared, reads no larger file.
        whole = model if model.stat().st_size <= MOST_PARSED_BYTES else None
        joined = join(
            bundles[::-1], out=out, pad=options.pad, padding_error=options.padding_error, model=whole, force=force
        )
    return TuneResult(jobs[0], BundleFile(out, jobs[0].name), measurers, jobs=tuple(jobs), joined=joined)


def _run(place: Workplace, model: Path, spec: JobSpec, view: View) -> JobStatus:
    try:
        return run_job(place, model, spec, view)
    except BadModel as error:
        remedy = "or give one shape: then the model is tuned in parts, and ONNX Runtime runs this node"
        raise with_remedy(spec, error, remedy) from error


def _elements(inputs: Inputs) -> int:
    return sum(math.prod(shape) for shape in shapes_in(as_shapes(inputs)).values())


def _part_of_budget(options: SearchOptions) -> SearchOptions:
    trials, extra, minutes = options.get("trials"), options.get("extra_trials"), options.get("minutes")
    if trials is None and extra is None:
        trials = JobSpec.trials
    return {
        "trials": None if trials is None else math.ceil(trials * _PART),
        "extra_trials": None if extra is None else math.ceil(extra * _PART),
        "minutes": None if minutes is None else minutes * _PART,
    }


_MOST_CUTS = 12
"""A refusal names one node, or all of some operators; each costs a job that ends within seconds"""


def tune_parts(
    model: Path, spec: JobSpec, refusal: BadModel, written: NewBundle, where: PlaceOptions, view: View
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
                    place.client.download_bundle(job.bundle, NewBundle(bundles[-1]))
                join_parts(model, parts, bundles, written)
                measurers = place.client.measurers() if place.is_own else {}
            bundle = BundleFile(written.path, jobs[0].name)
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
