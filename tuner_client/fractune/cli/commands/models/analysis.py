"""Commands that measure what a share is worth to a model: `matrix`, `knee`, `fit`, `pair`, `plan` and `noise`."""

import csv
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.ending import GOAL_MISSED, end_without
from fractune.cli.printing import choose_view, print_json, print_picture, print_tables
from fractune.features.client import Client
from fractune.features.fit.fit import DEFAULT_STEP, FitResult, fit as fit_model
from fractune.features.knee.knee import knee as model_knee
from fractune.features.knee.report import knee_json, limit_json
from fractune.features.matrix.cross_table import COLUMNS, CrossTable, rows, table_json
from fractune.features.matrix.matrix import matrix as model_matrix
from fractune.features.noise import noise as measure_noise
from fractune.features.pair.pair import DEFAULT_ROUNDS, PairResult, pair as measure_pair
from fractune.features.plan.plan import plan as make_plan
from fractune.local.model_server import SERVERS
from fractune.sessions.session import session
from fractune.text.output_files import as_cell, check_writable, replacing
from fractune.text.rendering import check_picture
from fractune.text.text import span_text
from fractune_core.errors import BadRequest


def noise(
    share: Annotated[str, typer.Option("--share", metavar="cpu:1", help="Share to measure under.")],
    measurers: Annotated[
        str | None,
        typer.Option("--measurers", metavar="1,2", help="Concurrent measurers to try (1,2; on a GPU 1,2,4,8)."),
    ] = None,
    candidates: Annotated[int, typer.Option("--candidates", help="Candidates to time, 8 to 200.")] = 24,
    model: Annotated[
        Path | None, typer.Option("--model", help="Time this model's heaviest operator (default: a convolution).")
    ] = None,
    only: Annotated[str, typer.Option("--only", help="Only an operator whose name contains one of these (A,B).")] = "",
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    run_script: options.RunScript = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw each setting's times over the reference's (.svg or .png).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the candidates.")] = 0,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Measure how reliable measurements are on this machine. It also finds how many may run at the same time."""
    check_picture(picture)
    found = measure_noise(
        share,
        measurers=None if measurers is None else options.parse_numbers("--measurers", measurers),
        candidates=candidates,
        model=model,
        only=only,
        inputs=options.parse_inputs(inputs),
        sizes=options.parse_one_size(sizes),
        run_script=run_script,
        seed=seed,
        state=state,
    )
    if picture is not None:
        found.draw(picture)
    if as_json:
        print(json.dumps({**found.data, "saved": str(found.saved)}), flush=True)
    else:
        print_tables(found.table)
        print(f"took {span_text(found.data['wall_s'])}; saved in {found.saved}")
        print_picture(picture)


def knee(
    model: options.ModelFile,
    shares: Annotated[
        str,
        typer.Option(
            "--shares",
            metavar="cpu:1,cpu:2,cpu:4",
            help="Shares of the curve, three or more; limits (cpu:1500m) are predicted.",
        ),
    ],
    slack: Annotated[str, typer.Option("--slack", help="Allowed slow-down against the whole device.")] = "10%",
    operators: Annotated[bool, typer.Option("--operators", help="Also the knee of each operator.")] = False,
    only: options.Only = "",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the curves here (.svg or .png).")] = None,
    as_json: options.Json = False,
    *,
    of_model: options.ModelOptions,
    place: options.JobPlace,
) -> None:
    """Find the smallest share that is nearly as fast as the whole device."""
    allowed = options.parse_part("--slack", slack)
    check_picture(picture)
    found = model_knee(
        model,
        shares,
        slack=allowed,
        operators=operators,
        only=only,
        progress=choose_view(quiet=False, as_json=as_json),
        **of_model.parsed(),
        **vars(place),
    )
    if picture is not None:
        found.draw(picture)
    if as_json:
        at_load = None if found.at_load is None else knee_json(found.at_load)
        curves, limits = map(knee_json, found.reports), map(limit_json, found.limits)
        shown = {"curves": list(curves), "at_load": at_load, "limits": list(limits)}
        print_json({"event": "knee", **shown, "skipped_shares": dict(found.skipped_shares)})
    else:
        print_tables(found.table)
        if found.limits:
            print_tables(found.limits_table)
        print_picture(picture)
    end_without(found.skipped_shares)


def fit(
    model: Annotated[Path, typer.Argument(help="Bundle, or ONNX file (see --runtime).", metavar="MODEL")],
    rate: Annotated[str, typer.Option("--rate", metavar="18/s", help="Requests, which arrive at random.")],
    p99: Annotated[str, typer.Option("--p99", metavar="50ms", help="Latency that 99 % of the requests must keep.")],
    share_steps: Annotated[
        str, typer.Option("--share-steps", metavar="50m", help="Limits are multiples of this.")
    ] = DEFAULT_STEP,
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw p99 over limit here (.svg or .png).")] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", metavar="onnxruntime|openvino", help="For an ONNX file.")
    ] = "onnxruntime",
    verify: Annotated[
        bool, typer.Option("--verify", help="Serve the model under the limit; exit code 10 if the p99 is not kept.")
    ] = False,
    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="|".join(SERVERS),
            help="Serve the bundle behind this server under the limit; exit code 10 if the p99 is not kept.",
        ),
    ] = "",
    server_python: Annotated[
        str, typer.Option("--server-python", metavar="PATH", help="Python that has the server's packages.")
    ] = sys.executable,
    as_json: options.Json = False,
) -> None:
    """Find the least CPU limit for a request rate and a p99."""
    check_picture(picture)
    found = fit_model(
        model,
        rate,
        p99,
        share_steps=share_steps,
        inputs=options.parse_inputs(inputs),
        sizes=options.parse_one_size(sizes),
        verify=verify,
        runtime=runtime,
        server=server,
        server_python=server_python,
        progress=not as_json,
    )
    if picture is not None:
        found.draw(picture)
    if as_json:
        print_json(found.to_json())
    else:
        _print_fit(found)
        print_picture(picture)
    if not found.held:
        raise typer.Exit(GOAL_MISSED)


def _print_fit(found: FitResult) -> None:
    print_tables(found.table)
    print()
    print(found.resources)
    for line in found.settings:
        print(f"# {line}")
    if found.verdict:
        print()
    for line in found.verdict:
        print(line)


def pair(
    a: Annotated[Path, typer.Argument(help="Bundle file.", metavar="A.fractune")],
    b: Annotated[Path | None, typer.Argument(help="Bundle file of the other model.", metavar="B.fractune")] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            "--shares", metavar="cpu:1,cpu:1", help="A share for each model (default: half of the cores each)."
        ),
    ] = None,
    overlap: Annotated[
        str | None, typer.Option("--overlap", metavar="cpu:2", help="Both on the same cores, at the same time.")
    ] = None,
    interleaved: Annotated[
        bool, typer.Option("--interleaved", help="Both on the same cores (all, or those of --overlap), alternately.")
    ] = False,
    co_runner: Annotated[
        str | None,
        typer.Option(
            "--co-runner", metavar="bubble:32MiB", help="Instead of B: a process that streams through memory."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds (alone, together, alone); 7 at least.")] = (
        DEFAULT_ROUNDS
    ),
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="20,10", help="Requests a second for latencies (default: 30 % load)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of phases and arrivals.")] = 0,
    record: Annotated[bool, typer.Option("--record", help="Keep the result in the log of the server.")] = False,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Measure the cost of running two models on this machine together."""
    place.check_record(record=record)
    found = measure_pair(
        a,
        b,
        shares=shares,
        overlap=overlap,
        interleaved=interleaved,
        co_runner=co_runner,
        rounds=rounds,
        rate=None if rate is None else parse_rates(rate),
        seed=seed,
        progress=not as_json,
    )
    if as_json:
        print(json.dumps(found.to_json()), flush=True)
    else:
        print_tables(found.table)
    if record:
        _record_pair(found, place, as_json=as_json)


def _record_pair(found: PairResult, place: options.Place, *, as_json: bool) -> None:
    """After the result is shown: it is not lost if no server answers."""
    pair = found.measured()
    with session(Client, place.state, place.server) as client:
        client.add_pair(pair)
    if not as_json:
        print(f"recorded as {pair.pair_id}")


def parse_rates(text: str) -> float | list[float]:
    """Read `20` or `20,10`. Raises BadRequest."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        raise BadRequest(f"--rate '{text}': write requests a second, such as 20, or 20,10 for each model") from None
    return rates[0] if len(rates) == 1 else rates


class Minimised(StrEnum):
    GPUS = "gpus"


def plan(
    file: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The models, their rates, and the device.")],
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", help="Largest number of devices.")] = None,
    minimise: Annotated[
        Minimised | None, typer.Option("--minimise", help="Use the fewest devices (the default).")
    ] = None,
    partitioning: Annotated[
        str, typer.Option("--partitioning", metavar="mig|mps|green|cpu|limit", help="How to divide a device.")
    ] = "",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate random arrivals, and add the headroom that p99 needs.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulation.")] = 0,
    measure: Annotated[bool, typer.Option("--measure", help="Time the shares that the plan depends on first.")] = False,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the devices here (.svg or .png).")] = None,
    as_json: options.Json = False,
    *,
    place: options.JobPlace,
) -> None:
    """Plan models onto parts of devices. The plan has the fewest devices for given rates, or is the best one for one
    device.
    """
    if minimise is not None and gpus is not None:
        raise BadRequest("--gpus and --minimise exclude each other: --gpus N allows N devices, and few may be used")
    check_picture(picture)
    made = make_plan(
        file,
        gpus=gpus,
        partitioning=partitioning,
        simulate=simulate,
        seed=seed,
        measure=measure,
        progress=choose_view(quiet=False, as_json=as_json),
        **vars(place),
    )
    if picture is not None:
        made.draw(picture)
    if as_json:
        print_json({"event": "plan", **made.to_json()})
    else:
        print_tables(made.table, made.models, *([made.slowdowns] if made.measured else []), picture=picture)


def matrix(
    model: options.ModelFile,
    shares: Annotated[str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares to compare.")],
    operators: Annotated[bool, typer.Option("--operators", help="Also one table for each operator.")] = False,
    rerank: Annotated[int, typer.Option("--rerank", min=1, help="Number of every share's best trials to measure.")] = 1,
    only: options.Only = "",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the table here (.svg or .png).")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write all cells here.")] = None,
    as_json: options.Json = False,
    *,
    of_model: options.ModelOptions,
    place: options.JobPlace,
) -> None:
    """Compare the schedules tuned for each share at every other share. Measures what the log lacks."""
    check_picture(picture)
    if csv_file is not None:
        check_writable("--csv", csv_file)
    found = model_matrix(
        model,
        shares,
        operators=operators,
        rerank=rerank,
        only=only,
        progress=choose_view(quiet=False, as_json=as_json),
        **of_model.parsed(),
        **vars(place),
    )
    if csv_file is not None:
        _write_csv(found.tables, csv_file)
    if picture is not None:
        found.draw(picture)
    if as_json:
        tables = [table_json(table) for table in found.tables]
        skipped = dict(found.skipped_shares)
        shown = {"shares": list(found.tables[0].shares), "tables": tables, "skipped_shares": skipped}
        print_json({"event": "matrix", **shown})
    else:
        print_tables(found.table, *found.operators, picture=picture)
    end_without(found.skipped_shares)


def _write_csv(tables: Sequence[CrossTable], path: Path) -> None:
    """Raises StateUnusable when the file cannot be written."""
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(("subject", "weight", *COLUMNS))
        for table in tables:
            for *row, repeats in rows(table):
                writer.writerow(map(as_cell, [table.name, table.weight, *row, ";".join(map(str, repeats))]))
