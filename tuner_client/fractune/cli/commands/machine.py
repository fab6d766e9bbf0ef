"""`fractune shares`, `doctor`, `mps ...` and `completion`: what this machine offers, and how it is set up."""

import json
import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from fractune.cli import options
from fractune.features.compete.compete import bundle_use
from fractune.local.doctor import Use, cpu_lines, examine, limit_text, making_text
from fractune.local.programs import PROOF_FAILED, apply_mig_layout, machine_shares, mig_commands, mps_daemon_here
from fractune.local.stack import own_env
from fractune.text.rendering import Column, Table
from fractune.text.text import percent_text
from fractune_core.cpu_limits import LimitSize
from fractune_core.cuda import MPS_PIPE_DIRECTORY, GpuEnvironment
from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.shares import Share, parse_shares, unit_name, units_text


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print a shell's completion script.

    Bash and zsh: add `source <(fractune completion bash)` (or zsh) to ~/.bashrc (or ~/.zshrc). Fish: write it to
    ~/.config/fish/completions/fractune.fish.
    """
    typer.echo(get_completion_script(prog_name="fractune", complete_var="_FRACTUNE_COMPLETE", shell=shell.value))


mps_app = typer.Typer(help="Run NVIDIA's MPS daemon, for models at shares mps:N.", rich_markup_mode=None)


@mps_app.callback()
def mps() -> None:
    """Run NVIDIA's MPS daemon, for models at shares mps:N."""


@mps_app.command()
def start() -> None:
    """Start the first visible GPU's daemon, and keep it until it is stopped."""
    gpu, daemon = mps_daemon_here()
    daemon.keep()
    print(f"an MPS daemon runs on {gpu.name} ({gpu.uuid})")
    print("`fractune run --share mps:25` and `fractune.load` find it; for other programs set:")
    print(f"{MPS_PIPE_DIRECTORY}={daemon.pipe_dir}")


@mps_app.command()
def stop() -> None:
    """End the daemon, or leave that to its last worker. Clients end first."""
    gpu, daemon = mps_daemon_here()
    daemon.stop_keeping()
    left = ", and ends with the last worker on the GPU" if daemon.is_running() else ""
    print(f"the MPS daemon of {gpu.name} ({gpu.uuid}) {'still runs' if left else 'does not run'}{left}")


@mps_app.command()
def status(as_json: options.Json = False) -> None:
    """Report whether the daemon runs, and its clients."""
    gpu, daemon = mps_daemon_here()
    found: dict[str, Any] = {"gpu": gpu.uuid, "pipe_dir": str(daemon.pipe_dir), "running": daemon.is_running()}
    found |= {"kept": daemon.is_kept, "clients": daemon.clients()}
    if as_json:
        print(json.dumps(found))
        return
    if not found["running"]:
        print(f"no MPS daemon runs on {gpu.name} ({gpu.uuid}); start one: fractune mps start")
        return
    until = "until `fractune mps stop`" if found["kept"] else "until its last worker ends"
    clients = ", ".join(map(str, found["clients"])) or "none"
    print(f"an MPS daemon runs on {gpu.name} ({gpu.uuid}) {until}")
    print(f"{MPS_PIPE_DIRECTORY}={daemon.pipe_dir}\nclients: {clients}")


class UseName(StrEnum):
    RUN = "run"
    TUNE = "tune"
    LIMITS = "limits"
    CUDA_BUILDS = "cuda-builds"
    GPU = "gpu"


def doctor(
    uses: Annotated[
        list[UseName] | None, typer.Option("--for", help="Exit with 1 unless this machine is ready for it; repeatable.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Exit with 1 unless this machine can run this bundle.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Report what this machine is ready for, and how to install the rest."""
    names = [name.value for name in uses or []]
    if bundle is not None and names:
        raise BadRequest("--bundle and --for exclude each other; give one of them")
    examined = [bundle_use(bundle)] if bundle else [use for use in examine() if not names or use.name in names]
    for use in examined:
        typer.echo(json.dumps(use.to_json()) if as_json else _use_text(use))
    if not as_json:
        typer.echo("+ found, - missing, o missing but not required")
    ready = [use.ready for use in examined]
    if not (all(ready) if names or bundle else any(ready)):
        raise typer.Exit(1)


def _use_text(use: Use) -> str:
    lines = [f"{use.title}: {'ready' if use.ready else 'not ready'}"]
    for finding in use.findings:
        mark = "+" if finding.found else ("o" if finding.optional else "-")
        lines.append(f"  {mark} {finding.what}: {finding.found or finding.how}")
    return "\n".join(lines)


_GIB = 2**30


def shares(
    named: Annotated[
        str, typer.Argument(metavar="[SHARES]", help="Only these shares, such as cpu:1500m (default: a list).")
    ] = "",
    prove: Annotated[
        bool, typer.Option("--prove", help="Enter each share in a separate process, and read back what it was granted.")
    ] = False,
    mig_layout: Annotated[
        str | None,
        typer.Option(
            "--mig-layout", metavar="3g+4g", help="Print the commands that divide a GPU into these instances."
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Run these commands. This needs root and removes the existing instances.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the shares that this machine's processors offer."""
    requested = _single(parse_shares(named)) if named else []
    if requested and mig_layout is not None:
        raise BadRequest(f"--mig-layout divides a whole GPU; leave '{named}' out")
    if apply and mig_layout is None:
        raise BadRequest("--apply runs the commands of a layout; pass --mig-layout too, such as --mig-layout 3g+4g")
    if prove and mig_layout is not None:
        raise BadRequest("--mig-layout changes the shares that --prove checks; run them one after the other")
    # The children must import our packages from the place of this process, never from their working directory.
    os.environ.update(own_env())
    if mig_layout is not None:
        _divide(mig_layout, apply=apply, as_json=as_json)
    else:
        _list_shares(requested, prove=prove, as_json=as_json)


def _single(shares: list[Share]) -> list[Share]:
    """The shares, a range as those that a worker measures at."""
    found = (each for share in shares for each in (share.kernel_shares if share.ends else [share]))
    return list(dict.fromkeys(found))


def _list_shares(named: list[Share], *, prove: bool, as_json: bool) -> None:
    """Raises ShareUnavailable at the end when a share failed its proof, or when no device has a named share, and
    BadRequest when the environment says what cannot be meant.
    """
    failed: list[str] = []
    missing = [str(share) for share in named]
    try:
        for device in machine_shares(named, prove=prove):
            failed += [offer["share"] for offer in device["offers"] if _has_failed(offer)]
            had = [offer["share"] for offer in device["offers"] if not offer["refusal"]]
            missing = [share for share in missing if share not in had]
            if as_json:
                print(json.dumps({"event": "device", **device}), flush=True)
            else:
                _print_device(device, every_reason=bool(named))
    except ShareUnavailable as error:
        print(json.dumps({"event": "no_gpu", "reason": str(error)}) if as_json else f"no GPU shares: {error}")
    if not named:
        _print_environment(GpuEnvironment.read(os.environ), as_json=as_json)
    missing = [share for share in missing if share not in failed]
    ends = {"could not be proved": failed, "cannot be had here": missing}
    if said := [f"{', '.join(shares)} {end}" for end, shares in ends.items() if shares]:
        raise ShareUnavailable(f"{', and '.join(said)}; the reasons are printed above")


def _print_environment(said: GpuEnvironment, *, as_json: bool) -> None:
    """What the environment says of a share of a GPU, if anything."""
    lines = list(said.lines())
    if as_json and lines:
        print(json.dumps({"event": "environment", **asdict(said), "lines": lines}))
    elif lines:
        print(*(f"environment: {line}" for line in lines), sep="\n")


def _print_device(device: dict[str, Any], *, every_reason: bool) -> None:
    _shares_table(device).print()
    for reason in _refusals(device["offers"], every=every_reason):
        print(f"not offered: {reason}")
    for offer in device["offers"]:
        for uuid in offer["instances"]:
            print(f"{offer['share']} is {uuid}")
        if offer["limit"]:
            print(_limit_text(offer["share"], **offer["limit"]))
        elif offer["unit"] == "millicore" and not offer["refusal"]:
            print(_unproved_text(offer["share"]))
    if device["cpus"]:
        print(*cpu_lines(device["cpus"]), sep="\n")
        _print_limits(device["limits"])


def _print_limits(limits: dict[str, Any]) -> None:
    print(f"CPU limit of this process: {limit_text(limits)}")
    way = making_text(limits)
    print(f"CPU limits can be made {way}" if way else f"no limit can be made: {limits['refusal']}")


def _limit_text(share: str, *, burned_m: int, span: int, period_us: int, burst_us: int, **_others: int) -> str:
    burst = f", with {burst_us / 1000:g} ms more after idle periods" if burst_us else ""
    return (
        f"{share}: busy processes got {burned_m}m on {units_text(span, 'CPU')}, in periods of {period_us / 1000:g} ms"
        f"{burst}"
    )


def _unproved_text(share: str) -> str:
    size = LimitSize.parse(Share.parse(share).size)
    span = size.span or len(os.sched_getaffinity(0))
    return (
        f"{share}: a limit of {size.limit_m}m on {units_text(span, 'CPU')}, in periods of {size.period_ms} ms; "
        "not proved"
    )


def _refusals(offers: list[dict[str, Any]], *, every: bool) -> list[str]:
    """The reason of every failed proof, and one reason for each mechanism that is not offered; or `every` reason."""
    reasons: dict[str, str] = {}
    for offer in offers:
        if offer["refusal"]:
            share = str(offer["share"])
            reasons.setdefault(share if every or _has_failed(offer) else share.partition(":")[0], offer["refusal"])
    return list(reasons.values())


def _has_failed(offer: dict[str, Any]) -> bool:
    return bool(offer["proof"] == PROOF_FAILED)


def _shares_table(device: dict[str, Any]) -> Table:
    columns = (
        *(Column("share"), Column("granted", numbers=True), Column("fraction", numbers=True, dispensable=1)),
        *(
            Column("memory", numbers=True),
            Column("by", dispensable=2),
            Column("units are"),
            Column("proved by", wraps_at=16),
        ),
    )
    return Table(
        title=device["label"],
        columns=columns,
        cells=tuple(_share_cells(offer) for offer in device["offers"] if not offer["refusal"]),
    )


def _share_cells(offer: dict[str, Any]) -> tuple[str, ...]:
    units = "-" if offer["units"] is None else str(offer["units"])
    memory = "-" if offer["memory_bytes"] is None else f"{offer['memory_bytes'] / _GIB:.1f} GiB"
    kept = {True: "reserved", False: "capped", None: "-"}[offer["reserved"]]
    mechanism = offer["share"].partition(":")[0]
    granted = f"{units} of {offer['units_total']} {unit_name(offer['unit'])}s"
    return offer["share"], granted, percent_text(offer["fraction"]), memory, mechanism, kept, offer["proof"]


def _divide(layout: str, *, apply: bool, as_json: bool) -> None:
    if not apply:
        lines = mig_commands(layout)
        print(json.dumps({"event": "layout", "commands": lines}) if as_json else "\n".join(lines))
        return
    commands: list[str] = []
    made = apply_mig_layout(layout, commands.append if as_json else lambda line: print(line, flush=True))
    print(json.dumps({"event": "layout", "commands": commands, "made": made}) if as_json else "\n".join(made))
