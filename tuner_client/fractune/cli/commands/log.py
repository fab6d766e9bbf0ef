"""`fractune log show|export|import|prune` and `fractune match`: what is known about speed."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fractune.cli import options
from fractune.cli.session import session
from fractune.log_io import jsondatabase
from fractune.log_io.log_files import read_jsonl, write_csv, write_jsonl
from fractune.output_files import check_free
from fractune.reports.text import table_console, time_text
from fractune_core.convert import record_from_proto, shapes_to_proto
from fractune_core.errors import BadModel, BadRequest, ShareUnavailable
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Status, TuningRecord
from fractune_core.shares import Share, units_text

app = typer.Typer(help="The tuning log: show, export, import, prune.", rich_markup_mode=None)

Model = Annotated[str, typer.Option("--model", help="Part of the model's file name, or models/SHA256.")]
Operator = Annotated[str, typer.Option("--operator", help="Part of an operator's name, or a workload hash.")]
ShareText = Annotated[str, typer.Option("--share", help="Share as it was asked for, such as cpu:1.")]
DeviceText = Annotated[str, typer.Option("--device", help="Part of a device key.")]
KindText = Annotated[str, typer.Option("--kind", help="trial or validation.")]
JobText = Annotated[str, typer.Option("--job", help="Only what this job measured.")]


class Format(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    JSONDATABASE = "jsondatabase"


def _filter(model: str, operator: str, share: str, device: str, kind: str, job: str) -> pb.RecordFilter:
    if share:
        Share.parse(share)
    if kind not in {"", "trial", "validation"}:
        raise BadRequest(f"--kind {kind}: write trial or validation")
    named = f"jobs/{job.removeprefix('jobs/')}" if job else ""
    return pb.RecordFilter(model=model, operator=operator, share=share, device=device, kind=kind, job=named)


@app.command()
def show(
    model: Model = "",
    operator: Operator = "",
    share: ShareText = "",
    device: DeviceText = "",
    kind: KindText = "",
    job: JobText = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 20,
    fastest: Annotated[bool, typer.Option("--fastest", help="Fastest first, not newest first.")] = False,
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Show records, newest first."""
    wanted = _filter(model, operator, share, device, kind, job)
    with session(state, server) as client:
        messages, total = client.records(wanted, limit, fastest_first=fastest)
    records = [record_from_proto(message) for message in messages]
    if as_json:
        for record in records:
            print(json.dumps(record.to_json()))
        return
    table_console().print(_records_table(records))
    print(f"{len(records)} of {total} records")


def _records_table(records: list[TuningRecord]) -> Table:
    table = Table("record", "kind", "operator", "share", "granted", "median", "spread", "status", "candidate")
    for record in records:
        granted = f"{record.granted.units} of {units_text(record.granted.units_total, record.granted.unit)}"
        status = record.status.value if not record.cause else f"{record.status.value}: {record.cause}"
        spread = f"{record.spread:.1%}" if record.status is Status.OK else "-"
        median = time_text(record.median_s)
        names = (record.record_id[:8], record.kind.value, record.operator, record.share, granted)
        table.add_row(*names, median, spread, status, record.candidate_id[:8])
    return table


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="File to write (a folder for jsondatabase).")],
    file_format: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.JSONL,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    model: Model = "",
    operator: Operator = "",
    share: ShareText = "",
    device: DeviceText = "",
    kind: KindText = "",
    job: JobText = "",
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Write records to a file: CSV, JSON lines, or a MetaSchedule JSONDatabase folder for stock TVM."""
    wanted = _filter(model, operator, share, device, kind, job)
    check_free(path, force=force)
    if file_format is Format.JSONDATABASE:
        jsondatabase.check_tvm()
        wanted.kind = wanted.kind or "validation"  # trials were never checked for right output
    with session(state, server) as client:
        parts = client.export_records(wanted, with_workloads=file_format is not Format.CSV)
        writers = {
            Format.CSV: write_csv,
            Format.JSONL: write_jsonl,
            Format.JSONDATABASE: jsondatabase.write_jsondatabase,
        }
        count = writers[file_format](parts, path)
    print(json.dumps({"path": str(path), "records": count}) if as_json else f"{count} records written to {path}")


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="JSON lines of ours, or a MetaSchedule JSONDatabase folder.")],
    share: Annotated[
        str,
        typer.Option("--share", help="JSONDatabase: the share it was measured at; the folder does not say."),
    ] = "",
    this_host: Annotated[
        bool,
        typer.Option("--device-from-this-host", help="JSONDatabase: it was measured on this very machine."),
    ] = False,
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Add records to the log, all or none; those already there are left as they are."""
    if path.is_dir():
        answer = _import_jsondatabase(path, share, state, server, this_host=this_host)
    else:
        parts = list(read_jsonl(path))
        with session(state, server) as client:
            answer = client.import_records(parts)
    if as_json:
        print(json.dumps({"added": answer.added, "already_there": answer.already_there}))
    else:
        print(f"{answer.added} records added, {answer.already_there} already there")


def _import_jsondatabase(
    path: Path, share: str, state: Path | None, server: str | None, *, this_host: bool
) -> pb.ImportRecordsResponse:
    """A JSONDatabase does not say what it was measured on; a live measurer of that share does."""
    if not share or not this_host:
        raise BadRequest(
            f"{path} is a JSONDatabase folder, which does not say what it was measured on: "
            "pass --share and --device-from-this-host"
        )
    wanted = str(Share.parse(share))
    jsondatabase.check_tvm()
    with session(state, server, shares=(wanted,)) as client:
        offered = next((each for each in client.shares() if each.granted.share == wanted), None)
        if offered is None:
            raise ShareUnavailable(f"no measurer offers {wanted}, so what it stands for is not known; start one")
        return client.import_records(list(jsondatabase.read_jsondatabase(path, offered)))


@app.command()
def prune(
    keep_best: Annotated[
        int,
        typer.Option("--keep-best", min=0, help="Trials to keep of each operator, target, device and share."),
    ] = 64,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only, delete nothing.")] = False,
    model: Model = "",
    operator: Operator = "",
    share: ShareText = "",
    device: DeviceText = "",
    kind: KindText = "",
    job: JobText = "",
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Delete trials beyond the best few; published records stay unless --kind validation asks for them."""
    wanted = _filter(model, operator, share, device, kind, job)
    with session(state, server) as client:
        answer = client.prune_records(wanted, keep_best, dry_run=dry_run)
    if as_json:
        print(json.dumps({"deleted": answer.deleted, "kept": answer.kept, "dry_run": dry_run}))
    else:
        print(f"{answer.deleted} records {'would be ' if dry_run else ''}deleted, {answer.kept} kept")


def match(
    model: Annotated[Path, typer.Argument(help="Model file.")],
    share: Annotated[str, typer.Option("--share", help="Share to match for, such as cpu:1.")],
    policy: Annotated[
        str, typer.Option("--policy", help="The loosest way to match that is allowed: exact, near or robust.")
    ] = "robust",
    allow_unmeasured: Annotated[
        bool,
        typer.Option("--allow-unmeasured", help="Offer a near share's fastest, its loss not measured."),
    ] = False,
    inputs: options.Inputs = None,
    target: options.Target = "",
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Say which record each operator of a model would use at a share, and why."""
    wanted = str(Share.parse(share))
    shapes = options.parse_inputs(inputs)
    if not model.is_file():
        raise BadModel(f"{model}: no such model file")
    with session(state, server, compile=True) as client:
        name = client.upload_model(model).name
        request = pb.MatchModelRequest(
            model=name,
            share=wanted,
            inputs=shapes_to_proto(shapes),
            target=target,
            loosest=policy,
            allow_unmeasured=allow_unmeasured,
        )
        found = client.match_model(request)
    if as_json:
        for each in found:
            print(json.dumps(_match_json(each)))
        return
    table = Table("operator", "weight", "how", "time", "regret", "why")
    for each in found:
        time_s = record_from_proto(each.record).median_s if each.HasField("record") else None
        operator = each.operator
        regret = "not measured" if math.isnan(each.regret) else f"{each.regret:.1%}"
        table.add_row(operator.display_name, str(operator.weight), each.how, time_text(time_s), regret, each.reason)
    table_console().print(table)


def _match_json(each: pb.OperatorMatch) -> dict[str, Any]:
    return {
        "operator": each.operator.display_name,
        "weight": each.operator.weight,
        "workload_hash": each.operator.workload_hash,
        "how": each.how,
        "regret": None if math.isnan(each.regret) else each.regret,
        "reason": each.reason,
        "record": record_from_proto(each.record).to_json() if each.HasField("record") else None,
    }
