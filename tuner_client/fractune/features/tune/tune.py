"""`fractune.tune`: tuning on the one-machine stack or on a server, followed to its end."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from fractune.features.compete.compete import check_runtimes, compete_tuned, installed_runtimes
from fractune.features.parts.parts import may_cut, with_remedy
from fractune.features.tune.bundle import BundleFile, check_kept
from fractune.features.tune.goal import GoalSpec, goal_spec, tune_until_beaten
from fractune.features.tune.result import TuneResult
from fractune.features.tune.shape_jobs import JoinOptions, check_several, options_by_shape, tune_parts, tune_shapes
from fractune.models.model_folder import read_folder
from fractune.models.open_sizes import settled
from fractune.models.source import ModelSource, check_arrays, is_onnx, model_file
from fractune.server.rpc import RECONNECT_S, RpcClient
from fractune.sessions.progress import ProgressOption, View, choose_view
from fractune.sessions.session import PathText, PlaceOptions, finished_job, session
from fractune.text.output_files import new_bundle
from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadModel, BadRequest, FractuneError
from fractune_core.files.bundles import SUFFIX
from fractune_core.files.compared import ONNX_RUNTIME
from fractune_core.files.model_files import MOST_PARSED_BYTES
from fractune_core.files.new_bundle import NewBundle
from fractune_core.jobs import JobSpec, SearchOptions
from fractune_core.model_inputs import SeveralShapes, Sizes
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import Share, share_names

NONE = "none"
"""as `compete`: no other runtime has a part in the bundle"""


def tune(
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    until_beats: str | None = None,
    min_gain: float | None = None,
    compete: str | Sequence[str] | None = None,
    inputs: SeveralShapes | None = None,
    sizes: Sizes | None = None,
    lengths: Mapping[str, Sequence[int]] | None = None,
    pad: Mapping[str, float] | None = None,
    padding_error: float = 0.0,
    run_script: bool = False,
    greedy: bool = False,
    out: PathText | None = None,
    force: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
    **options: Unpack[SearchOptions],
) -> TuneResult:
    """Tune a model for shares of this machine, or of a server's machines, and write its bundle.

    Without `server` (HOST:PORT or unix:PATH; default: FRACTUNE_SERVER) the stack of `fractune up` in the folder `state`
    is used (default: FRACTUNE_STATE, else the user's data folder). If none is running, one is started for this call,
    with its data in that folder. Ctrl-C cancels the job and ends that stack; the measurements stay in the log.

    `shares` is `["cpu:1", "cpu:2"]` or `"cpu:1,cpu:2"`. `options` are those of the job, such as `trials`, the number of
    measured candidates (default: 256): docs/python.md lists them, and `fractune tune --help`.

    With `until_beats="onnxruntime"` the search ends when the bundle is faster than the ONNX model in ONNX Runtime at
    every share of this machine's CPU. Faster means by more than the fraction `min_gain` (0.05 = 5 %), beyond the noise.
    It also ends after `minutes` (default: 15), or at `trials` (default: no limit); see `TuneResult.goal`.

    At the end the bundle is timed beside other runtimes at each share of whole CPU cores, and the fastest serves there:
    see `fractune.compete` and `TuneResult.answer`. `compete="onnxruntime,openvino"` names them; by default it is ONNX
    Runtime, for an ONNX file that was tuned on this machine, if it is installed here. An ONNX model with a node that
    cannot be imported is cut: what can be imported is tuned, and ONNX Runtime runs the rest. With `compete="none"` ONNX
    Runtime has no part in it: nothing is compared, and such a model is refused.

    A Python file (TVMScript) is refused, unless `run_script` allows its code to run here; then the IRModule that it
    makes is tuned.

    `inputs` gives shapes to inputs that the model leaves open. With several shapes (`{"ids": [[1, 16], [1, 64]]}`) the
    model is tuned for each, the largest first, and the bundle runs any shape up to it; `pad` and `padding_error` are
    those of `fractune.join`.

    `sizes` gives an ONNX file's open axes their sizes by name, one or several: `{"past_sequence_length": [256, 1024],
    "sequence_length": 1}`. Sums and products of names follow, and so does what the graph forces. Of several sizes all
    combinations are tuned that do not contradict the model. `lengths` has places in place of names (`{"ids:1": [16,
    64]}`). A batch that nothing gives is 1.

    With `greedy` the bundle of a decoder has the most probable token of each position (`next_token`) in place of its
    output `logits`: a step of `model.decoder()` returns it.

    The bundle's outputs are compared with those of ONNX Runtime on random inputs and extremes of their types, and on
    the arrays of the .npz file `check_inputs`; see `TuneResult.checked`. A bundle that computes something else is not
    published: OutputsDiffer names the first node.

    The bundle is the file `out` (default: `<model>.fractune` in the current folder). A bundle there that serves shares,
    shapes or by runtimes that the new one would not, or another file, is replaced with `force` only. `progress` shows a
    bar, nothing (False), or calls a function with each JobStatus. An unreachable server is awaited for `reconnect_s`.

    Raises BadModel, BadRequest, ShareUnavailable, ServerUnreachable, StateUnusable, and the error that ended the job.
    """
    where = PlaceOptions(server, state, reconnect_s)
    with model_file(model, run_script=run_script, inputs=inputs, greedy=greedy) as path:
        contenders, why_not = _contenders(compete, path, shares, where.named_server)
        view = choose_view(progress)
        shapes = settled(path, inputs, {**(lengths or {}), **(sizes or {})}, view.show_step)
        of_jobs = options_by_shape(options, shapes)
        join_options = JoinOptions(pad, padding_error)
        join_options.check(len(of_jobs), path)
        specs = [JobSpec.requested(path.name, shares, **each) for each in of_jobs]
        timed = contenders + ([until_beats] if until_beats else [])
        written = new_bundle(out, path.name, force=force, runtimes=timed)
        check_kept(written, specs)
        check_arrays(specs, path)
        view.afterwards_s = _COMPARING_S * len(specs[0].shares) if contenders and until_beats is None else 0.0
        if len(specs) > 1:
            check_several(path, until_beats)
            result = tune_shapes(path, specs, join_options, written, where, view)
        else:
            goal = goal_spec(until_beats, min_gain, path, specs[0], options, where.named_server)
            parts = compete != NONE and path.stat().st_size <= MOST_PARSED_BYTES
            result = _tuned(path, specs[0], goal, written, where, view, parts=parts)
        return _compared(result, path, contenders, why_not, state, view, requested=compete is not None)


def tune_folder(
    folder: PathText,
    shares: str | Sequence[str],
    *,
    sizes: Sizes | None = None,
    compete: str | Sequence[str] | None = None,
    greedy: bool = False,
    out_dir: PathText | None = None,
    force: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    **options: Unpack[SearchOptions],
) -> dict[str, TuneResult]:
    """Tune each graph in the folder of a model that optimum or onnxruntime-genai exported. Returns results by file.

    Sizes are those of the configuration; `sizes` by name replace them in the graphs that have such a name. Bundles are
    `<graph>.fractune` in `out_dir` (default: the current folder). All else is as in `tune`. Raises as `tune`, BadModel
    for a folder without graphs, and BadRequest for a name that no graph has.
    """
    found = read_folder(Path(folder))
    results = {}
    for each, own in zip(found.graphs, found.sizes(sizes or {}), strict=True):
        results[str(each.path.relative_to(found.path))] = tune(
            each.path,
            shares,
            compete=compete,
            sizes=own,
            greedy=greedy and each.has_logits,
            out=None if out_dir is None else Path(out_dir) / f"{each.path.stem}{SUFFIX}",
            force=force,
            server=server,
            state=state,
            progress=progress,
            **options,
        )
    return results


def _tuned(
    model: Path,
    spec: JobSpec,
    goal: GoalSpec | None,
    written: NewBundle,
    where: PlaceOptions,
    view: View,
    *,
    parts: bool,
) -> TuneResult:
    """The model in steps to its goal, or by one job, or in parts if these are allowed and the importer refuses a node
    of it.
    """
    if goal is not None:
        return tune_until_beaten(model, spec, goal, written, where, view)
    try:
        with finished_job(model, spec, where, view) as (place, job):
            place.client.download_bundle(job.bundle, written)
            # The stack of this call is still running.
            measurers = place.client.measurers() if place.is_own else {}
    except BadModel as error:
        if not parts:
            remedy = "or leave out --compete none: then ONNX Runtime runs this node in a model of up to 2 GiB"
            raise with_remedy(spec, error, remedy) from error
        if not may_cut(spec, error):
            raise
        return tune_parts(model, spec, error, written, where, view)
    return TuneResult(job, BundleFile(written.path, job.name), measurers)


_COMPARING_S = 5.0
"""beside ONNX Runtime at a share, for the time left"""


def _contenders(
    compete: str | Sequence[str] | None, model: Path, shares: str | Sequence[str], server: str | None
) -> tuple[list[str], str]:
    """The runtimes to time beside the bundle at the end; if none, why ONNX Runtime is not, unless that was asked for.
    Raises BadRequest if the caller names a runtime that cannot be timed here.
    """
    if compete == NONE:
        return [], ""
    if model.stat().st_size > MOST_PARSED_BYTES:
        why = "it reads no model of more than 2 GiB as one file"
        if compete is not None:
            raise BadRequest(f"--compete: {model.name} has more than 2 GiB, and {why}; leave it out")
        return [], why
    where = f"the job runs on {server}; 'fractune compete BUNDLE --model MODEL' compares where the bundle is served"
    if compete is not None:
        if server is not None:
            raise BadRequest(f"--compete times runtimes on this machine, and {where}")
        if not _has_cores(shares):
            raise BadRequest("--compete is for shares of whole CPU cores; name one, such as cpu:1, or leave it out")
        return check_runtimes(compete), ""
    if server is not None:
        return [], where
    if not _has_cores(shares):
        return [], "it is timed at shares of whole CPU cores, such as cpu:1"
    if ONNX_RUNTIME not in installed_runtimes():
        return [], f"it is not installed here; install it by 'pip install {ONNX_RUNTIME}'"
    return ([ONNX_RUNTIME], "") if is_onnx(model) else ([], "the model is not an ONNX file")


def _has_cores(shares: str | Sequence[str]) -> bool:
    """Whether one of the shares is of whole CPU cores, at which runtimes can be timed."""
    return any(Share.parse(share).kind.unit == "core" for share in share_names(shares))


def _compared(
    result: TuneResult,
    model: Path,
    contenders: list[str],
    why_not: str,
    state: PathText | None,
    view: View,
    *,
    requested: bool,
) -> TuneResult:
    """The bundle after the contest. Without a contest, or after one that failed and was not requested, the bundle
    as it is and the reason.
    """
    was_beaten = result.goal is not None and result.goal.beaten and not requested
    if not contenders or was_beaten:  # the last step toward the goal has compared them
        return replace(result, not_compared="" if was_beaten else why_not)
    try:
        return _competed(result, model, contenders, state, view)
    except FractuneError as error:
        if requested:
            raise
        return replace(result, not_compared=str(error))
    except KeyboardInterrupt as stop:
        stop.add_note(f"the bundle is {result.bundle.path}, and was not compared with other runtimes")
        raise


def _competed(result: TuneResult, model: Path, contenders: list[str], state: PathText | None, view: View) -> TuneResult:
    """The bundle after the contest, whose times go into the log of the job too, if its stack can be reached."""
    with view:
        competed = compete_tuned(result.bundle.path, model, contenders, view.show_step)
    try:
        with session(RpcClient, state, None) as client:
            client.add_runtime_times(to_proto(each, pb.RuntimeTime) for each in competed.measured())
    except FractuneError as error:
        view.show_step(f"the times of other runtimes are in the bundle, and not in the log: {error}")
    return replace(result, competed=competed)
