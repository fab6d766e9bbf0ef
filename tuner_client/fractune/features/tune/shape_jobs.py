"""Tuning by several jobs, one after another, and one bundle of all: a job for each shape, or each part of a model.

The largest shape comes first, with the whole budget. Each further one starts from the schedules of those before it, and
gets a part of the budget. The shapes of `--lengths auto` suit a sample of lengths, by times in ONNX Runtime here. A
model that the importer refuses in part has a job for each part that it can import.
"""

import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from fractune.features.join import check_pad_names, check_padding_error, join
from fractune.features.parts.parts import Parts, cut_model, join_parts, with_remedy
from fractune.features.tune.bundle import BundleFile
from fractune.features.tune.result import TuneResult
from fractune.local.stack import own_env
from fractune.local.timing_process import timing_process
from fractune.models.open_sizes import settled
from fractune.models.source import ModelSource, check_arrays, model_file, onnx_dtypes
from fractune.server.job_status import JobStatus
from fractune.server.rpc import RpcClient, submit
from fractune.sessions.progress import View
from fractune.sessions.session import PlaceOptions, Workplace, run_job, tuning_session
from fractune.text.output_files import read_small
from fractune.text.text import time_text
from fractune_core.analysis.bucket_choice import STEP, BucketChoice, choose_buckets, interpolated
from fractune_core.errors import BadModel, BadRequest, FractuneError
from fractune_core.files.buckets import shape_text
from fractune_core.files.fused import is_fused
from fractune_core.files.model_files import MOST_PARSED_BYTES, Interface, read_interface
from fractune_core.files.new_bundle import NewBundle
from fractune_core.jobs import JobOptions, JobSpec, SearchOptions
from fractune_core.model_inputs import Inputs, SeveralShapes, Sizes, as_shapes, each_shape, shapes_in
from fractune_core.operators import RefusedNode, refused_node
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import Share


def only_length(held: Interface) -> str:
    """The only open axis beside the batch, as a key of `sizes`. Raises BadRequest without one, or with several."""
    names = held.sizes_with()
    ranks = {each.name: len(each.shape or ()) for each in held.inputs}
    found: dict[object, str] = {}
    for (name, axis), formula in names.axes.items():
        if axis > 0 or ranks[name] == 1:
            found.setdefault(axis if str(formula) in names.nameless else formula, f"{name}:{axis}")
    if len(found) != 1:
        raise BadRequest(f"--lengths auto: name the axis, as INPUT:AXIS=auto; {names.text}")
    return next(iter(found.values()))


DEFAULT_BUCKETS = 4
_POINTS, _REPEATS = 6, 6
_MOST_LENGTH = 2**20


def read_sample(path: Path) -> list[int]:
    """The lengths in a file, one a line. Raises BadRequest for another file, with the line."""
    try:
        lines = read_small(path).decode().splitlines()
    except (OSError, ValueError) as error:
        raise BadRequest(f"--sample {path}: cannot be read ({error}); name a text file with a length a line") from error
    found = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= _MOST_LENGTH:
            raise BadRequest(f"--sample {path}, line {number}: '{text[:40]}' is not a length from 1 to {_MOST_LENGTH}")
        found.append(int(text))
    if not found:
        raise BadRequest(f"--sample {path}: it has no length; write one a line")
    return found


def buckets_for(
    model: Path,
    inputs: SeveralShapes,
    sizes: Sizes,
    key: str,
    sample: Sequence[int],
    most: int,
    shares: Sequence[str],
    report_line: Callable[[str], None],
) -> list[int]:
    """At most `most` sizes of `key`, with the least expected time of the sample at the first CPU share; `sizes` has
    those of others.

    Raises BadRequest, and FractuneError if ONNX Runtime is not installed.
    """
    share = next((each for each in shares if Share.parse(each).kind.measures_kernels and each.startswith("cpu")), None)
    if share is None:
        raise BadRequest(
            f"--lengths {key}=auto times the model on the CPU, and shares are {', '.join(shares)}; name sizes"
        )
    timed = _sizes_to_time(sample)
    several = [settled(model, inputs, {**sizes, key: size}) or {} for size in timed]
    secs = _seconds(model, share, [as_shapes(each_shape(each)[0]) for each in several])
    choice = choose_buckets(sample, interpolated(list(zip(timed, secs, strict=True))), most)
    report_line(_choice_text(key, choice, len(sample)))
    return list(choice.buckets)


def _sizes_to_time(sample: Sequence[int]) -> list[int]:
    """Some sizes from the shortest to the longest length, in equal ratios."""
    low, high = (math.ceil(length / STEP) * STEP for length in (min(sample), max(sample)))
    ratios = [(high / low) ** (number / (_POINTS - 1)) for number in range(_POINTS)]
    return sorted({round(low * ratio / STEP) * STEP for ratio in ratios})


def _seconds(model: Path, share: str, several: Sequence[Mapping[str, list[int]]]) -> list[float]:
    """Of one inference at each of the shapes."""
    with timing_process(share, own_env()) as call:
        found: list[list[float]] = call("time_peer_at", path=str(model), several=several, repeats=_REPEATS)["run_secs"]
    return [statistics.median(run_secs) for run_secs in found]


def _choice_text(place: str, choice: BucketChoice, lengths: int) -> str:
    more = choice.mean_s / choice.exact_mean_s - 1
    return (
        f"buckets for {place}: {', '.join(map(str, choice.buckets))}; of {lengths} lengths a mean of "
        f"{time_text(choice.mean_s)} in ONNX Runtime, {more * 100:.0f} % above no padding at all"
    )


def chosen_sizes(
    model: Path,
    inputs: SeveralShapes,
    sizes: Mapping[str, list[int] | None],
    sample: Path | None,
    most: int | None,
    shares: Sequence[str],
    report_line: Callable[[str], None],
) -> dict[str, list[int]]:
    """The sizes of axes by name or place. None stands for sizes by the lengths in the file `sample`, an empty name for
    the only open axis beside the batch. Raises as `buckets_for`, and BadModel for a file that is not ONNX.
    """
    _check_auto(sizes, sample, most)
    known = {key: found for key, found in sizes.items() if found is not None}
    if sample is None:
        return known
    held, lengths = read_interface(model), read_sample(sample)
    if held is None:
        raise BadModel(f"{model.name}: --lengths auto needs an ONNX file, and this is none; give each shape")
    for key in sizes.keys() - known.keys():
        named = key or only_length(held)
        known[named] = buckets_for(model, inputs, known, named, lengths, most or DEFAULT_BUCKETS, shares, report_line)
    return known


def _check_auto(sizes: Mapping[str, list[int] | None], sample: Path | None, most: int | None) -> None:
    is_auto = None in sizes.values()
    if is_auto and sample is None:
        raise BadRequest(
            "--lengths auto chooses sizes for lengths as they are served; add --sample FILE, with one a line"
        )
    given = "--sample" if sample is not None else "--most-buckets" if most is not None else ""
    if given and not is_auto:
        raise BadRequest(
            f"{given} is for --lengths auto, and no axis has 'auto'; write INPUT:AXIS=auto, or leave it out"
        )


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
