"""`fractune log show|code|export|import|prune|dead` and `fractune match`: the tuning log."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.printing import print_json, print_tables
from fractune.features.client import Client
from fractune.features.compete.results import contest_events, held_contests
from fractune.features.join import BundleTimes, bundle_times, padding_line
from fractune.features.log import jsondatabase
from fractune.features.log.log import Log, check_export, record_filter
from fractune.features.log.match import match as match_model
from fractune.sessions.session import session
from fractune_core.errors import BadRequest, NotFound
from fractune_core.files.bundles import SUFFIX, is_bundle
from fractune_core.records import TuningRecord
from fractune_core.shares import Share

log_app = typer.Typer(help="The tuning log: show, code, export, import, prune, dead.", rich_markup_mode=None)


@dataclass(frozen=True)
class Filters:
    """Filters of records."""

    model: Annotated[str, typer.Option("--model", help="Part of the model's file name, or models/SHA256.")] = ""
    operator: Annotated[str, typer.Option("--operator", help="Part of an operator's name, or a workload hash.")] = ""
    share: Annotated[str, typer.Option("--share", help="Requested share, such as cpu:1.")] = ""
    device: Annotated[str, typer.Option("--device", help="Part of a device key.")] = ""
    kind: Annotated[str, typer.Option("--kind", help="trial or validation.")] = ""
    job: Annotated[str, typer.Option("--job", help="Only measurements of this job.")] = ""
    namespace: options.Namespace = ""


@contextlib.contextmanager
def _log(filters: Filters, place: options.Place) -> Iterator[Log]:
    """The tuning log. Raises BadRequest for an impossible filter before a stack starts."""
    record_filter(**vars(filters))
    with session(Client, **vars(place)) as client:
        yield client.log


class Format(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    JSONDATABASE = "jsondatabase"


@log_app.command()
def show(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Largest number of records.")] = 20,
    fastest: Annotated[bool, typer.Option("--fastest", help="Fastest first, not newest first.")] = False,
    as_json: options.Json = False,
    *,
    filters: Filters,
    place: options.Place,
) -> None:
    """Show records, newest first."""
    with _log(filters, place) as log:
        found = log.query(**vars(filters), limit=limit, fastest=fastest)
    if as_json:
        print_json(*found.table.rows)
        return
    print_tables(found.table)
    print(f"{len(found)} of {found.total} records")


@log_app.command()
def code(
    record: Annotated[str, typer.Argument(help="Record, by its id (default: the fastest that passes).")] = "",
    assembly: Annotated[bool, typer.Option("--assembly", help="Assembly of a CPU's code in place of the TIR.")] = False,
    as_json: options.Json = False,
    *,
    filters: Filters,
    place: options.Place,
) -> None:
    """Print the program of a measured schedule, as TIR or as assembly. It is built again, which takes seconds."""
    with _log(filters, place) as log:
        found = log.record(record, **vars(filters)) if record else _fastest(log, filters)
        made = log.code(found)
    if as_json:
        print_json({"record": found.record_id, **vars(made)})
        return
    if assembly and not made.assembly:
        raise BadRequest("--assembly: the schedule is for a GPU; leave it out for the TIR")
    print(made.assembly if assembly else made.tir)


def _fastest(log: Log, filters: Filters) -> TuningRecord:
    found = log.query(limit=1, fastest=True, **vars(filters))
    if not found:
        raise NotFound("no record passes the filters; list records with 'fractune log show'")
    return found[0]


@log_app.command()
def export(
    path: Annotated[Path, typer.Argument(help="File to write (for jsondatabase a folder).")],
    file_format: Annotated[Format, typer.Option("--format", help="Format of the file.")] = Format.JSONL,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: options.Json = False,
    *,
    filters: Filters,
    place: options.Place,
) -> None:
    """Write records to a file. The formats are CSV, JSON lines, or a MetaSchedule JSONDatabase folder for stock TVM."""
    check_export(path, file_format.value, force=force)
    with _log(filters, place) as log:
        count = log.export(path, file_format=file_format.value, force=force, **vars(filters))
    print(json.dumps({"path": str(path), "records": count}) if as_json else f"{count} records written to {path}")


@log_app.command()
def dead(
    replay: Annotated[bool, typer.Option("--replay", help="Have the server read all of them again.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Largest number of results.")] = 20,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Show results of workers that the server could not read. The newest come first; they are torn, or of another
    version.
    """
    with session(Client, **vars(place)) as client:
        if replay:
            count = client.log.replay_unreadable()
            print(json.dumps({"replayed": count}) if as_json else f"{count} results are read again")
            return
        found, total = client.log.unreadable(limit=limit)
    for each in found:
        at = each.set_aside_at.isoformat()
        shown = {"set_aside_at": at, "place": each.place, "reason": each.reason, "event": each.event}
        print(json.dumps(shown) if as_json else f"{at}  {each.place}  {each.reason}\n  {each.event}")
    if not as_json:
        print(f"{len(found)} of {total} unreadable results")


@log_app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="JSON lines of fractune, or a MetaSchedule JSONDatabase folder.")],
    share: Annotated[
        str, typer.Option("--share", help="JSONDatabase: share of its measurements, which the folder does not state.")
    ] = "",
    this_host: Annotated[
        bool, typer.Option("--device-from-this-host", help="JSONDatabase: it was measured on this machine.")
    ] = False,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Add records to the log, all or none of each 16 MiB. Existing records stay as they are."""
    measured_at = _measured_at(path, share, this_host=this_host) if path.is_dir() else ""
    with session(Client, **vars(place), shares=(measured_at,) if measured_at else ()) as client:
        answer = client.log.import_file(path, share=measured_at)
    if as_json:
        print_json({"added": answer.added, "already_there": answer.already_there})
    else:
        print(f"{answer.added} records added, {answer.already_there} already there")


def _measured_at(path: Path, share: str, *, this_host: bool) -> str:
    """The share of a JSONDatabase folder, which does not state it; a live measurer of that share names the device."""
    if not share or not this_host:
        raise BadRequest(
            f"{path} is a JSONDatabase folder, which does not state its device and share: "
            "pass --share and --device-from-this-host"
        )
    jsondatabase.check_tvm()
    return str(Share.parse(share))


@log_app.command()
def prune(
    keep_best: Annotated[
        int, typer.Option("--keep-best", min=0, help="Trials to keep of each operator, target, device and share.")
    ] = 64,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only, delete nothing.")] = False,
    as_json: options.Json = False,
    *,
    filters: Filters,
    place: options.Place,
) -> None:
    """Delete trials beyond the best few. Published records stay unless --kind validation is given."""
    with _log(filters, place) as log:
        answer = log.prune(keep_best=keep_best, dry_run=dry_run, **vars(filters))
    if as_json:
        print_json({"deleted": answer.deleted, "kept": answer.kept, "dry_run": dry_run})
    else:
        print(f"{answer.deleted} records {'would be ' if dry_run else ''}deleted, {answer.kept} kept")


def match(
    model: Annotated[Path, typer.Argument(help="Model file, models/SHA256 of the server, or a bundle.")],
    share: Annotated[str, typer.Option("--share", help="Share to match for, such as cpu:1; not for a bundle.")] = "",
    policy: Annotated[
        str, typer.Option("--policy", help="Loosest allowed kind of match: exact, near or robust.")
    ] = "robust",
    allow_unmeasured: Annotated[
        bool,
        typer.Option("--allow-unmeasured", help="Allow a near share's fastest record, whose loss was not measured."),
    ] = False,
    as_json: options.Json = False,
    *,
    of_model: options.ModelOptions,
    place: options.Place,
) -> None:
    """Show the record of the log that each operator would use at a share."""
    if is_bundle(model) or model.suffix == SUFFIX:  # a torn one is named as such
        _print_bundle(model, share, as_json=as_json)
        return
    if not share:
        raise BadRequest("--share is missing; name the share to match for, such as --share cpu:1")
    found = match_model(
        str(model), share, policy=policy, allow_unmeasured=allow_unmeasured, **of_model.parsed(), **vars(place)
    )
    if as_json:
        print_json(*found.to_json())
        for goal, best in found.served.items():
            print_json({"share": found.share, "goal": goal, **best.served.to_json()})
    else:
        print_tables(found.table)


def _print_bundle(path: Path, share: str, *, as_json: bool) -> None:
    """Print what each shape of a bundle takes, and other runtimes beside it."""
    if share:
        raise BadRequest(f"--share {share}: {path} is a bundle, which has its times at all shares; leave --share out")
    contests, found = held_contests(path), bundle_times(path)
    if found is None and not contests.contests:
        raise BadRequest(f"{path}: a bundle with one shape that was compared with nothing; name its model, and --share")
    if found is not None:
        _print_times(found, as_json=as_json)
    if contests.contests and as_json:
        print_json(*contest_events(contests))
    elif contests.contests:
        print_tables(contests.table)


def _print_times(found: BundleTimes, *, as_json: bool) -> None:
    if as_json:
        print_json(*found.to_json())
        print_json({"padding": found.padding.to_json()})
        return
    print_tables(found.table)
    print(padding_line(found.padding))
