"""`fractune mps ...`: an MPS daemon for models at shares `mps:N`, with the settings that a worker's daemon has."""

import json
from typing import Any

import typer

from fractune.cli import options
from fractune.local.programs import mps_daemon_here
from fractune_core.cuda import MPS_PIPE_DIRECTORY

app = typer.Typer(help="Run NVIDIA's MPS daemon, for models at shares mps:N.", rich_markup_mode=None)


@app.callback()
def mps() -> None:
    """Run NVIDIA's MPS daemon, for models at shares mps:N."""


@app.command()
def start() -> None:
    """Start the first visible GPU's daemon, and keep it until it is stopped."""
    gpu, daemon = mps_daemon_here()
    daemon.keep()
    print(f"an MPS daemon runs on {gpu.name} ({gpu.uuid})")
    print("`fractune run --share mps:25` and `fractune.load` find it; for other programs set:")
    print(f"{MPS_PIPE_DIRECTORY}={daemon.pipe_dir}")


@app.command()
def stop() -> None:
    """End the daemon, or leave that to its last worker. Clients end first."""
    gpu, daemon = mps_daemon_here()
    daemon.stop_keeping()
    left = ", and ends with the last worker on the GPU" if daemon.is_running() else ""
    print(f"the MPS daemon of {gpu.name} ({gpu.uuid}) {'still runs' if left else 'does not run'}{left}")


@app.command()
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
