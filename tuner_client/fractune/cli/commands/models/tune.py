"""`fractune tune`: a model in, a bundle out."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.cli import options
from fractune.cli.ending import GOAL_MISSED, end_without, run_when_done
from fractune.cli.printing import choose_view, print_answer, print_details, print_json, print_picture
from fractune.features.compete.results import checked_lines
from fractune.features.fuse import apart_text, slots_text
from fractune.features.goal import goal_notes, verdict_line
from fractune.features.join import padding_line
from fractune.features.tune.answer import MOST_ROWS
from fractune.features.tune.goal import DEFAULT_MINUTES, PEERS
from fractune.features.tune.job_file import written
from fractune.features.tune.result import TuneResult, parts_table, result_events, shapes_table
from fractune.features.tune.shape_jobs import chosen_sizes, submit_each
from fractune.features.tune.tune import tune as tune_model
from fractune.local.noise_file import advice_for, measuring_text
from fractune.local.state import default_state_dir
from fractune.models.inspection import InspectedSize, Inspection, OpenSizes
from fractune.models.open_sizes import settled
from fractune.models.source import check_model_file, is_model_script, model_file
from fractune.server.rpc import RpcClient
from fractune.sessions.session import server_session
from fractune.text.output_files import write_new
from fractune.text.rendering import check_picture
from fractune.text.toml_table import Value
from fractune_core.errors import BadModel, BadRequest, one_line, shortened
from fractune_core.files.bundles import SUFFIX, Bundle
from fractune_core.files.compared import ONNX_RUNTIME, RUNTIMES
from fractune_core.jobs import JobSpec, Priority
from fractune_core.model_inputs import SeveralShapes, Sizes
from fractune_core.shares import share_names

Shares = Annotated[str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares to tune for.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="File for the bundle (default: MODEL.fractune in the current folder)."),
]
OutDir = Annotated[
    Path | None, typer.Option("--out-dir", help="Folder for MODEL.fractune of each model of --job, in place of --out.")
]
Picture = Annotated[
    Path | None, typer.Option("--picture", help="Draw the table tuned-at x run-at here (.svg or .png).")
]
Greedy = Annotated[
    bool, typer.Option("--greedy", help="Of a decoder: return the most probable token in place of logits.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Submit the job to a running server, print its name and exit.")]
JobFile = Annotated[
    Path | None,
    typer.Option("--job", help="TOML file with models and options, in place of MODEL and of all other options."),
]
WriteJob = Annotated[
    Path | None, typer.Option("--write-job", help="Write this command's options to a file for --job; tune nothing.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the result.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", help="At the end also print the gain over untuned TVM, all operators, and where the time went."
    ),
]
_OF_ONE_RUN = ("detach", "quiet", "verbose", "json")
"""options that say how a command is followed, and nothing of the work"""
_SHOWN = 80
"""characters of a size's name"""


@dataclass(frozen=True)
class Search:
    """The options of a job, by their names in `fractune_core.jobs.JobOptions`."""

    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            help="Number of measured candidates, including those in the log; 0 searches nothing. "
            f"[default: {JobSpec.trials}; with --until-beats no limit]",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help=f"Stop searching after this long. [with --until-beats: {DEFAULT_MINUTES:g}]"),
    ] = None
    extra_trials: Annotated[
        int | None, typer.Option("--extra-trials", help="Candidates beyond those in the log, in place of --trials.")
    ] = None
    round_size: Annotated[int, typer.Option("--round", help="Most candidates in a round.")] = JobSpec.round_size
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = JobSpec.seed
    rerank: Annotated[
        int | None, typer.Option("--rerank", help="Do not search: measure this many of every share's best in the log.")
    ] = None
    only: options.Only = ""
    exact: options.Exact = False
    check_inputs: options.CheckInputs = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Use no measurements of other jobs, and share no search with them.")
    ] = False
    priority: Annotated[
        Priority, typer.Option("--priority", help="Share of the fleet; each level gets four times the level below.")
    ] = Priority.NORMAL


@dataclass(frozen=True)
class OtherRuntimes:
    """The options that compare the bundle with other runtimes."""

    until_beats: Annotated[
        str | None,
        typer.Option(
            "--until-beats", metavar=PEERS[0], help="Tune until the bundle is faster than this runtime at all shares."
        ),
    ] = None
    min_gain: Annotated[
        str | None, typer.Option("--min-gain", metavar="5%", help="With --until-beats: faster by more than this.")
    ] = None
    compete: Annotated[
        str | None,
        typer.Option(
            "--compete",
            metavar=",".join(RUNTIMES),
            help="Time these runtimes beside the bundle at the end; the fastest serves each share. With 'none' nothing "
            f"is compared, and what cannot be imported is refused. [default: {ONNX_RUNTIME}, where it can be timed]",
        ),
    ] = None

    def parsed(self) -> dict[str, Any]:
        """The arguments of the Python API. Raises BadRequest."""
        gain = None if self.min_gain is None else options.parse_part("--min-gain", self.min_gain)
        return {**vars(self), "min_gain": gain}


@dataclass(frozen=True)
class LengthOptions:
    """The options that choose several shapes by the lengths of an axis."""

    lengths: options.Lengths = None
    sample: options.Sample = None
    most_buckets: options.MostBuckets = None

    def all_sizes(
        self, model: Path, inputs: SeveralShapes, texts: list[str] | None, shares: str, report: Callable[[str], None]
    ) -> dict[str, list[int]]:
        """The sizes by name or place, with those of `--size`. Raises BadRequest."""
        lengths = options.parse_sizes("--lengths", self.lengths)
        for place, sizes in lengths.items():
            if sizes is not None and len(sizes) == 1:
                hint = "the bundle runs this size alone; give several for any up to it"
                report(f"--lengths {place}={sizes[0]}: {hint}")
        known = {**lengths, **options.parse_sizes("--size", texts)}
        names = share_names(shares)
        return chosen_sizes(model, inputs, known, self.sample, self.most_buckets, names, report)


def tune(
    model: options.ModelFile,
    shares: Shares,
    search: Search,
    of_model: options.ModelOptions,
    runtimes: OtherRuntimes,
    of_lengths: LengthOptions,
    padding: options.Padding,
    out: Out = None,
    out_dir: OutDir = None,
    force: options.Force = False,
    picture: Picture = None,
    greedy: Greedy = False,
    detach: Detach = False,
    on_done: options.OnDone = None,
    job: JobFile = None,
    write_job: WriteJob = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: options.Json = False,
    *,
    context: typer.Context,
    place: options.JobPlace,
) -> None:
    """Tune a model for shares of this machine, or of a server's machines."""
    if job is not None:  # `main` has put the options of a file there in place of --job
        raise BadRequest(f"--job {job}: a job's file names no other; leave it out")
    if write_job is not None:
        _write_job(write_job, model, context)
        return
    after_search = {**runtimes.parsed(), **padding.parsed()}
    inputs = options.parse_several(of_model.inputs)

    def job_options(report: Callable[[str], None]) -> dict[str, Any]:
        sizes = of_lengths.all_sizes(model, inputs, of_model.sizes, shares, report)
        shapes = _settled_or_asked(model, inputs, sizes, report, may_ask=not (quiet or as_json))
        given = {**vars(search), **vars(of_model), "inputs": shapes, "greedy": greedy}
        del given["sizes"]  # they are in the shapes
        return given

    if detach:
        after = {"out": out, "out_dir": out_dir, "force": force or None, "picture": picture, "on_done": on_done}
        _check_detached(**vars(runtimes), **vars(padding), **after)
        _leave(model, shares, job_options(_print_aside), place, as_json=as_json)
        return
    check_picture(picture)
    view = choose_view(quiet=quiet, as_json=as_json)
    chosen = job_options(view.show_step)
    with run_when_done(on_done, view) as fetched:
        result = tune_model(
            model,
            shares,
            out=_file(out, out_dir, model),
            force=force,
            progress=view,
            **after_search,
            **chosen,
            **vars(place),
        )
        fetched.bundle = result.bundle.path
        _show(result, place.state, picture, as_json=as_json, verbose=verbose)
        if result.goal is not None and not result.goal.beaten:
            raise typer.Exit(GOAL_MISSED)
        end_without(result.skipped_shares)


def _settled_or_asked(
    model: Path, inputs: SeveralShapes, sizes: Sizes, report: Callable[[str], None], *, may_ask: bool
) -> SeveralShapes:
    """The inputs with sizes for what the model leaves open; a terminal is asked for them. Raises BadModel, and
    OpenSizes without a terminal.
    """
    if is_model_script(model):
        return inputs
    with model_file(model, inputs=inputs) as path:
        try:
            return settled(path, inputs, sizes, report) or {}
        except OpenSizes as error:
            found = error.found
            may_ask = may_ask and sys.stdin.isatty() and sys.stderr.isatty()
            if found is None or not may_ask or any(each.is_open and each.axes is None for each in found.inputs):
                raise
            return settled(path, inputs, {**sizes, **_asked(found)}, report) or {}


def _asked(found: Inspection) -> dict[str, int]:
    """The sizes that do not follow from others, each asked for once."""
    print(found.table, "Enter takes a size in brackets.", sep="\n", file=sys.stderr)
    return {each.name: _asked_size(each) for each in found.sizes if not (each.equals or each.is_given)}


def _asked_size(of: InspectedSize) -> int:
    while not of.is_batch:
        print(f"size of {shortened(of.name, _SHOWN)} [{of.suggested}]: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            raise BadModel(f"the size of {of.name} was not given; fix it by --size")
        if not answer.strip():
            break
        if answer.strip().isdecimal() and int(answer) > 0:
            return int(answer)
        print("write a whole number of at least 1", file=sys.stderr)
    return of.suggested


def _print_aside(line: str) -> None:
    """Standard output is for the names of jobs."""
    print(line, file=sys.stderr)


def _show(result: TuneResult, state: Path | None, picture: Path | None, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        print_json(*result_events(result))
    else:
        printed = _print(result, None if verbose else MOST_ROWS)
        if verbose:
            _print_details(result, state, printed)
    if picture is not None:
        _draw(result, picture, as_json=as_json)


def _draw(result: TuneResult, picture: Path, *, as_json: bool) -> None:
    if result.stages is not None:
        print(f"no picture: {picture} would show one part of the model only", file=sys.stderr)
        return
    result.matrix.draw(picture)
    if not as_json:
        print_picture(picture)


def _file(out: Path | None, out_dir: Path | None, model: Path) -> Path | None:
    if out is not None and out_dir is not None:
        raise BadRequest(f"--out {out} and --out-dir {out_dir} exclude each other: --out is a file; give one")
    return out if out_dir is None else out_dir / f"{model.stem}{SUFFIX}"


def _write_job(path: Path, model: Path, context: Any) -> None:
    """Write the options of the command line to a file, without the options of one run."""
    check_model_file(model)
    given = _given(context)
    of_one_run = [f"--{name}" for name in _OF_ONE_RUN if given.pop(name, False)]
    write_new("--write-job", path, written(model, given, path.parent))
    again = " ".join([f"fractune tune --job {path}", *of_one_run])
    print(f"wrote {path}; '{again}' runs it")
    if of_one_run:
        print(f"note: options of one run are not in the file; pass them on the command line: {' '.join(of_one_run)}")


def _given(context: Any) -> dict[str, Value]:
    """The options that the command line has, by their names."""
    given: dict[str, Value] = {}
    for each in context.command.params:
        source = context.get_parameter_source(each.name)
        if source is not None and source.name == "COMMANDLINE" and each.name not in ("model", "write_job"):
            value = context.params[each.name]
            given[each.opts[0].removeprefix("--")] = (
                list(map(str, value))
                if isinstance(value, list | tuple)
                else value
                if isinstance(value, bool | int | float)
                else str(value)
            )
    return given


def _check_detached(**given: object) -> None:
    """Raises BadRequest for an option whose work comes after the end of the job."""
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise BadRequest(f"{option} and --detach exclude each other: --detach does not wait; 'fractune watch' does")


def _leave(model: Path, shares: str, job_options: Any, place: options.JobPlace, *, as_json: bool) -> None:
    """Submit the job, or one for each shape, and print the names."""
    with server_session(RpcClient, **vars(place), lasting=True, shares=share_names(shares)) as client:
        for job in submit_each(client, model, shares, **job_options):
            skipped = dict(job.spec.skipped_shares)
            event = {"event": "detached", "job": job.name, "server": client.address, "skipped_shares": skipped}
            print(json.dumps(event) if as_json else job.name)
    end_without(skipped)


def _print(result: TuneResult, most_rows: int | None = MOST_ROWS) -> list[str]:
    """Returns the notes that were printed."""
    checked = checked_lines(result.bundle.path)
    notes = [] if result.goal is None else goal_notes(result.goal)
    if result.competed is not None:
        notes += result.competed.refusals
    notes += [f"note: {one_line(note)}" for note in result.job.notes if note not in checked]
    return print_answer(result.answer, str(result.bundle.path), _lines(result, checked), notes, most_rows)


def _lines(result: TuneResult, checked: Sequence[str]) -> Iterator[str]:
    if result.competed is not None and result.competed.served:
        yield f"the bundle runs the model by {result.competed.served}, which is faster there"
    if result.joined is not None:
        yield padding_line(result.joined.padding)
    if result.stages is not None:
        others = sum(step.member is None for step in result.stages.steps)
        yield f"ONNX Runtime runs {others} of {len(result.stages.steps)} parts, which could not be imported"
    yield from _slots(result.bundle.path)
    yield checked[0] if len(checked) == 1 else f"{checked[0]} ({len(checked) - 1} more: --json)"
    if result.goal is not None:
        yield verdict_line(result.goal)


def _print_details(result: TuneResult, state: Path | None, printed: Sequence[str]) -> None:
    if result.joined is not None:
        shapes_table(result).print()
    if result.stages is not None:
        parts_table(result, result.stages).print()
    for job in result.jobs or (result.job,):
        print_details(job, None, printed)
    if result.measurers:
        for share, advice in advice_for(state or default_state_dir(), result.job.tuned_at).items():
            print(measuring_text(share, advice, result.measurers[share]))


def _slots(bundle: Path) -> Iterator[str]:
    """The slots of a fused model, and the operators that could not be fused."""
    with contextlib.closing(Bundle(bundle)) as opened:
        slots, apart = (opened.manifest.get(name) for name in ("slots", "apart"))
    if slots:
        yield f"slots: {slots_text(slots)}"
    if apart:
        yield f"note: {apart_text(apart)}"
