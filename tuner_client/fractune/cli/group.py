"""The list of commands, groups of them, whose help has each command under its heading, and groups of options.

A command takes a dataclass as a parameter, with an option for each field. Every command with --server also has the
options for the credentials of a client. While the command runs, they set the environment variables of
`fractune.server.credentials`, which hold file names and no secrets.
"""

import contextlib
import functools
import inspect
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from fractune.arguments import command_line
from fractune.cli.ending import Stopped
from fractune.server.credentials import VARIABLES
from fractune_core.errors import FractuneError


class Entry(NamedTuple):
    """A command. Its summary is the first sentence of its docstring."""

    heading: str
    module: str
    """below `fractune.cli.commands`; it defines a function of the command's name, or the Typer `NAME_app` of a group"""
    example: str


GROUPS = frozenset({"log", "admin", "mps", "slurm"})
"""commands with subcommands"""

_TUNE, _JOBS, _ANALYSIS, _FLEET = "Tune and run", "Jobs and the log", "Analysis", "Fleet"

COMMANDS = {
    "tune": Entry(_TUNE, "models.tune", "fractune tune model.onnx --shares cpu:1,cpu:2"),
    "inspect": Entry(_TUNE, "models.inspect", "fractune inspect model.onnx"),
    "run": Entry(_TUNE, "models.run", "fractune run model.fractune --share cpu:1"),
    "bundle": Entry(_TUNE, "models.bundle", "fractune bundle model.onnx --shares cpu:1"),
    "compete": Entry(_TUNE, "models.bundle", "fractune compete model.fractune --model model.onnx"),
    "join": Entry(_TUNE, "models.bundle", "fractune join short.fractune long.fractune --out model.fractune"),
    "fuse": Entry(_TUNE, "models.bundle", "fractune fuse red.onnx green.onnx --out both.onnx"),
    "pack": Entry(_TUNE, "models.packs", "fractune pack model.onnx --candidates 48 --out model.pack"),
    "measure": Entry(_TUNE, "models.packs", "fractune measure model.pack --shares cpu:1 --public-key public.pem"),
    "jobs": Entry(_JOBS, "jobs", "fractune jobs --server tuner:50051"),
    "show": Entry(_JOBS, "jobs", "fractune show 4f1c9a02d7e8 --operators"),
    "watch": Entry(_JOBS, "jobs", "fractune watch 4f1c9a02d7e8"),
    "cancel": Entry(_JOBS, "jobs", "fractune cancel 4f1c9a02d7e8"),
    "cost": Entry(_JOBS, "jobs", "fractune cost --since 7d"),
    "retune": Entry(_JOBS, "jobs", "fractune retune --shares cpu:4"),
    "log": Entry(_JOBS, "log", "fractune log show --share cpu:1 --fastest"),
    "diff": Entry(_ANALYSIS, "jobs", "fractune diff 4f1c9a02d7e8 b2c07d11e6a4"),
    "match": Entry(_ANALYSIS, "log", "fractune match model.onnx --share cpu:2"),
    "matrix": Entry(_ANALYSIS, "models.analysis", "fractune matrix model.onnx --shares cpu:1,cpu:2"),
    "knee": Entry(_ANALYSIS, "models.analysis", "fractune knee model.onnx --shares cpu:1,cpu:2,cpu:4"),
    "fit": Entry(_ANALYSIS, "models.analysis", "fractune fit model.onnx --rate 18/s --p99 50ms"),
    "pair": Entry(_ANALYSIS, "models.analysis", "fractune pair a.fractune b.fractune --overlap cpu:2"),
    "plan": Entry(_ANALYSIS, "models.analysis", "fractune plan plan.toml"),
    "noise": Entry(_ANALYSIS, "models.analysis", "fractune noise --share cpu:1"),
    "up": Entry(_FLEET, "fleet.up", "fractune up --shares cpu:1,cpu:2"),
    "dashboard": Entry(_FLEET, "fleet.up", "fractune dashboard --server tuner:50051"),
    "server": Entry(_FLEET, "fleet.launch", "fractune server --redis redis://localhost:6379/0"),
    "worker": Entry(_FLEET, "fleet.launch", "fractune worker --role build --redis redis://tuner:6379/0"),
    "node": Entry(_FLEET, "fleet.launch", "fractune node --shares cpu:1,cpu:2 --redis redis://tuner:6379/0"),
    "slurm": Entry(_FLEET, "fleet.slurm", "fractune slurm script --nodes 4 --time 4:00:00 --state ~/fleet"),
    "workers": Entry(_FLEET, "jobs", "fractune workers --server tuner:50051"),
    "shares": Entry(_FLEET, "machine", "fractune shares --prove"),
    "mps": Entry(_FLEET, "machine", "fractune mps start"),
    "doctor": Entry(_FLEET, "machine", "fractune doctor"),
    "health": Entry(_FLEET, "fleet.launch", "fractune health --server tuner:50051"),
    "admin": Entry(_FLEET, "fleet.admin", "fractune admin token create ci --scope submit --out token"),
    "completion": Entry(_FLEET, "machine", "fractune completion bash"),
}


def _option(name: str, text: str) -> Any:
    return typer.Option(f"--{name.replace('_', '-')}", help=f"{text} [{VARIABLES[name]}]")


@dataclass
class _Caller:
    ca: Annotated[Path | None, _option("ca", "Use TLS with --server; the file has its authority's certificate.")] = None
    token_file: Annotated[Path | None, _option("token_file", "File with the token for --server.")] = None
    client_cert: Annotated[
        Path | None, _option("client_cert", "Certificate of this client, if --server requires one.")
    ] = None
    client_key: Annotated[Path | None, _option("client_key", "The key of --client-cert.")] = None


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command for typer: with the options of its groups, and with the credentials if it takes --server."""
    if hasattr(command, "__signature__"):  # done for another command line
        return command
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, each in signature.parameters.items():
        if is_dataclass(each.annotation) and isinstance(each.annotation, type):
            groups[name] = each.annotation
            parameters += _fields(each.annotation)
        else:
            parameters.append(each)
    if any(each.name == "server" for each in parameters):
        groups[""] = _Caller
        parameters += _fields(_Caller)

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        credentials: dict[str, str] = {}
        for name, group in groups.items():
            made = group(**{each.name: given.pop(each.name) for each in _fields(group)})
            if name:
                given[name] = made
            else:
                credentials = {VARIABLES[key]: str(path) for key, path in vars(made).items() if path is not None}
        with _environment(credentials):
            return command(**given)

    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    run.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables of the environment until the block ends: the next model of a job's file has its own."""
    former = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in former.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _fields(group: type) -> list[inspect.Parameter]:
    return list(inspect.signature(group, eval_str=True).parameters.values())


_WHOLE = 10_000
"""largest length of a summary in characters"""


class Command(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        """As usual, but errors name the options of the command, not the arguments of the functions behind it."""
        try:
            with command_line():
                return super().invoke(ctx)
        except FractuneError as error:
            error.args = (self._with_options(str(error)),)
            raise

    def _with_options(self, text: str) -> str:
        """`min_gain` becomes `--min-gain` anywhere; a name of one word only where the text is about its value."""
        for param in self.params:
            name, option = param.name or "", next((each for each in param.opts if each.startswith("--")), "")
            if option:
                place = rf"(?<![\w-]){name}(?![\w-])" if "_" in name else rf"^{name}(?= is |: | ')"
                text = re.sub(place, option, text)
        return text


class Group(TyperGroup):
    """Its help lists each command under its heading."""

    def invoke(self, ctx: Any) -> Any:
        """As usual, but Ctrl-C is no mere exit code, so that `main` can say what became of the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            stopped = Stopped(signal.SIGINT)
            stopped.__notes__ = getattr(stop, "__notes__", [])
            raise stopped from stop

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        headings: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            if not command.hidden:
                heading = getattr(command, "rich_help_panel", None) or "Commands"
                headings.setdefault(heading, []).append((name, command.get_short_help_str(_WHOLE)))
        for heading, commands in headings.items():
            with formatter.section(heading):
                formatter.write_dl(commands)
