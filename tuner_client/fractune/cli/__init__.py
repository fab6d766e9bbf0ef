"""The command `fractune`. Every failure is one line on standard error and a documented exit code."""

import contextlib
import importlib
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TextIO

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]

from fractune.cli.ending import Stopped, output_that_may_close, take_signals
from fractune.cli.group import COMMANDS, GROUPS, Command, Group, with_groups
from fractune.features.tune.job_file import Line, expanded
from fractune_core import __version__
from fractune_core.errors import BadModel, BadRequest, FractuneError

_DEBUG = "FRACTUNE_DEBUG"
_WRONG_VALUES = {
    "int_parsing": "'{value}' is not a whole number",
    "float_parsing": "'{value}' is not a number",
    "greater_than_equal": "{value} is less than {ge}",
    "less_than_equal": "{value} is more than {le}",
}
"""by the parsing library's type of error"""


def _wants_tracebacks() -> bool:
    """FRACTUNE_DEBUG=1: show tracebacks instead of one line."""
    return os.environ.get(_DEBUG, "") not in {"", "0"}


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fractune {__version__}")
        raise typer.Exit


def build_app(name: str) -> typer.Typer:
    """The command line with the command `name`, or with all commands if none has that name.

    A stack starts many processes; each imports only the module of its own command.
    """
    app = typer.Typer(
        name="fractune",
        help="Tunes deep-learning models for the share of a processor that they will really run on.",
        no_args_is_help=False,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        cls=Group,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_fractune)
    for each in [name] if name in COMMANDS else COMMANDS:
        heading, place, example = COMMANDS[each]
        module = importlib.import_module(f"fractune.cli.commands.{place}")
        shown: dict[str, Any] = {"rich_help_panel": heading, "epilog": f"Example: {example}"}
        if each in GROUPS:
            group = getattr(module, f"{each}_app")
            _add_groups(group)
            app.add_typer(group, name=each, cls=Group, **shown)
        else:
            app.command(each, cls=Command, **shown)(with_groups(getattr(module, each)))
    return app


def _add_groups(app: Any) -> None:
    """Give each command of a `typer.Typer`, and of those below it, the options of its groups."""
    for command in app.registered_commands:
        command.callback, command.cls = with_groups(command.callback), Command
    for group in app.registered_groups:
        _add_groups(group.typer_instance)


def _fractune(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (docs/exit-codes.md)."""
    args = sys.argv[1:] if args is None else args
    if _wants_tracebacks():
        logging.basicConfig(level=logging.INFO)
    logging.getLogger("fractune").addHandler(logging.NullHandler())
    take_signals()
    try:
        completion_init()  # for a shell that requests completions by an environment variable
        return _coded(partial(_run_all, args))
    except Stopped as stopped:
        if stopped.terminal_gone or stopped.reader_gone:
            _silence(sys.stdout, sys.stderr)
            return stopped.exit_code
        return _fail(str(stopped), stopped.exit_code)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except typer.Abort:
        return _fail("aborted", 1)


def _run_all(args: Sequence[str]) -> int:
    """Run the command line, or those of a job's file one after the other. A failure of one does not end the others, but
    none begins if an option of one is wrong.
    """
    command: Any = typer.main.get_command(build_app(args[0] if args else ""))
    lines = expanded(args)
    of_models = [line for line in lines if line.job is not None]
    wrong = max([_coded(partial(_parse, command, line), line.place) for line in of_models], default=0)
    return wrong or max(_coded(partial(_run, command, line), line.place) for line in lines)


def _parse(command: Any, line: Line) -> int:
    name, *options = line.args
    with contextlib.suppress(typer.Exit):  # after --help
        _check_options(command.commands[name].make_context(f"fractune {name}", options).params, line.args)
    return 0


def _run(command: Any, line: Line) -> int:
    with output_that_may_close():
        line.begin()
        try:
            code = command(args=line.args, prog_name="fractune", standalone_mode=False)
        except BadModel as error:
            _show_open(error, line.args)
            raise
    return code if isinstance(code, int) else 0


def _check_options(params: Mapping[str, Any], args: Sequence[str]) -> None:
    """Check the shapes of a command line of a job's file, by its parsed options. Raises BadModel, OpenSizes."""
    from fractune.cli.options import parse_several, parse_sizes
    from fractune.models.open_sizes import settled
    from fractune.models.source import is_model_script, model_file

    model = params["model"]
    if is_model_script(model):
        return
    inputs = parse_several(params["inputs"])
    sizes = {**parse_sizes("--lengths", params["lengths"]), **parse_sizes("--size", params["sizes"])}
    known = {name: each for name, each in sizes.items() if each is not None}
    try:
        with model_file(model, inputs=inputs) as path:
            if len(known) == len(sizes):
                settled(path, inputs, known)
    except BadModel as error:
        _show_open(error, args)
        error.args = (str(error).replace("inputs: ", "--input: ", 1),)
        raise


def _show_open(error: BadModel, args: Sequence[str]) -> None:
    """Print the table of open sizes, and the command line with options that fix them, if the error is about these. The
    error itself has the options too, for a quiet command.
    """
    from fractune.models.inspection import OpenSizes

    if isinstance(error, OpenSizes) and error.found is not None and "--quiet" not in args:
        print(error.found.table, shlex.join(["fractune", *args, *error.found.options]), sep="\n", file=sys.stderr)


def _coded(work: Callable[[], int], where: str = "") -> int:
    """The exit code of the work. An error is one line that begins with `where`, but for what ends the whole command."""
    try:
        return work()
    except (Stopped, typer.Abort):
        raise
    except FractuneError as error:
        return _fail(f"{where}{error}", error.exit_code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        place = context.command_path if context else "fractune"
        return _fail(f"{where}{_usage(error)}. Try '{place} --help'.", BadRequest.exit_code)
    except ModuleNotFoundError as error:
        why = f"this part needs {error.name}, which is not installed; 'fractune doctor' says what to install"
        return _fail(f"{where}{why}", FractuneError.exit_code)
    except Exception as error:  # noqa: BLE001  - the outermost frame: nothing else would report it
        why = f"{type(error).__name__}: {error}"
        return _fail(f"{where}unexpected error: {why}; set {_DEBUG}=1 to see where", FractuneError.exit_code)


def _usage(error: Any) -> str:
    """The error of the command line. Errors of typer's parsing library are in fractune's words."""
    text: str = error.format_message().rstrip(".")
    if not hasattr(error.__cause__, "errors"):
        return text
    wrong = error.__cause__.errors()[0]
    form = _WRONG_VALUES.get(wrong["type"])
    why = (
        form.format(value=wrong["input"], **wrong.get("ctx", {}))
        if form
        else wrong["msg"].removeprefix("Value error, ")
    )
    return text.replace(error.message.rstrip("."), why.rstrip("."))


def _silence(*streams: TextIO) -> None:
    """Write no more to a stream without a reader: Python would complain when it flushes at exit."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, code: int) -> int:
    if _wants_tracebacks():
        traceback.print_exc()
    try:
        print("fractune:", " ".join(message.split()), file=sys.stderr, flush=True)
    except OSError:  # no reader, or a terminal that was closed
        _silence(sys.stderr)
    return code
