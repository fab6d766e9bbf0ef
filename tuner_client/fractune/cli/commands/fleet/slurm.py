"""`fractune slurm ...`: a fleet as one job of Slurm."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli.commands.fleet import launch
from fractune.cli.commands.fleet.launch import AUTO, LogFormat, LogFormatOption, LogLevel, LogLevelOption, parse_count
from fractune.cli.ending import Stopped
from fractune.local.node import NodeOptions, node_shares
from fractune.local.slurm import DEFAULT_GRACE_S, HeadOptions, ScriptOptions, batch_script, prepare, run_head
from fractune_core.errors import BadRequest

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


@dataclass(frozen=True)
class SlurmFleet:
    """Options of the fleet itself, which `script` passes on to `head`."""

    state: Annotated[
        Path, typer.Option("--state", help="Folder that all nodes see: secrets, and the copy of log, jobs and bundles.")
    ]
    shares: Annotated[str, typer.Option("--shares", help="Shares that each node measures.")] = "cpu:1"
    builders: Annotated[str, typer.Option("--builders", help="Builders of each node, or auto.")] = AUTO
    grace_s: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="Time for the work in hand at the end.")
    ] = DEFAULT_GRACE_S
    host: Annotated[
        str, typer.Option("--host", help="Name of the first node for the others (default: its host name).")
    ] = ""
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Serve clients on other machines too, with TLS.")
    ] = ""
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="TLS certificate. Calls then need tokens.")] = None
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The key of --tls-cert.")] = None

    def parsed(self, command: Sequence[str]) -> HeadOptions:
        """Raises BadRequest for what a part of the fleet would refuse: a job may wait in a queue for hours."""
        count = None if self.builders == AUTO else parse_count("--builders", self.builders)
        shares = node_shares(self.shares)
        NodeOptions(shares, count, grace_s=self.grace_s)
        server = self._server()
        if server and len(server) < 6:
            raise BadRequest("others use these machines: --listen, --tls-cert and --tls-key go together; pass all")
        host = self.host or socket.gethostname()
        if not _HOST.fullmatch(host):
            raise BadRequest(f"--host '{host}': write a name or an address, such as node17 or 10.0.0.17")
        state = self.state.expanduser().absolute()
        return HeadOptions(state, shares, self.builders, server, tuple(command), host, self.grace_s)

    def words(self) -> list[str]:
        """The same options for `fractune slurm head`."""
        words = ["--state", str(self.state.expanduser().absolute()), "--shares", self.shares]
        words += ["--builders", self.builders, "--grace", f"{self.grace_s:g}", *self._server()]
        return [*words, "--host", self.host] if self.host else words

    def _server(self) -> tuple[str, ...]:
        files = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key}
        given = {"--listen": self.listen} | {option: str(file.absolute()) for option, file in files.items() if file}
        return tuple(word for option, value in given.items() if value for word in (option, value))


Command = Annotated[
    list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Run this on the first node, and end with it.")
]

slurm_app = typer.Typer(help="Run a fleet as a job of Slurm.", rich_markup_mode=None)


@slurm_app.callback()
def slurm() -> None:
    """Run a fleet as a job of Slurm."""


@slurm_app.command()
def script(
    fleet: SlurmFleet,
    time: Annotated[str, typer.Option("--time", help="Time limit of the job, as for sbatch.")],
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes.")] = 1,
    partition: Annotated[str, typer.Option("--partition", help="Partition of the cluster.")] = "",
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", help="GPUs of each node.")] = 0,
    cpus_per_node: Annotated[int, typer.Option("--cpus-per-node", help="CPUs of each node (default: all).")] = 0,
    command: Command = None,
) -> None:
    """Print a batch file that runs a fleet, and make its folder."""
    head_options = fleet.parsed(command or ())
    wanted = ScriptOptions(nodes, time, head_options.state, partition, gpus_per_node, cpus_per_node)
    prepare(head_options.state)
    typer.echo(batch_script(wanted, [*fleet.words(), *(["--", *command] if command else [])]), nl=False)


@slurm_app.command()
def head(
    fleet: SlurmFleet,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
    command: Command = None,
) -> None:
    """Run the fleet of this Slurm job, as the batch file does."""
    launch.set_up_logs(log_level, log_format)
    try:
        code = run_head(fleet.parsed(command or ()))
    except Stopped as stopped:
        stopped.add_note(f"all state is in {fleet.state}, and the next job with that folder goes on with it")
        raise
    raise typer.Exit(code)
