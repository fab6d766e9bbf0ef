"""Options that several commands share, and the environment variables of a fleet that stand in for some.

The Python API reads FRACTUNE_SERVER and FRACTUNE_STATE too (`fractune.sessions.session`, `fractune.local.state`).
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fractune.server.rpc import RECONNECT_S
from fractune.text.output_files import read_small
from fractune_core.access import TlsFiles, with_password
from fractune_core.errors import BadRequest
from fractune_core.model_inputs import CONSTANT, Input, SeveralShapes, combined_shapes

SECRET = "FRACTUNE_SECRET"  # noqa: S105  - the variable's name
DATABASE = "FRACTUNE_DATABASE"
DATABASE_PASSWORD_FILE = "FRACTUNE_DATABASE_PASSWORD_FILE"  # noqa: S105  - the variable's name


def fleet_secret(secret_file: Path | None) -> bytes:
    """The fleet's secret, from the file or from FRACTUNE_SECRET. Raises BadRequest if there is none."""
    text = os.environ.get(SECRET, "") if secret_file is None else _read("--secret-file", secret_file)
    if not text.strip():
        source = str(secret_file) if secret_file else SECRET
        raise BadRequest(
            f"{source} holds no secret; give the server and every worker the same secret, by --secret-file or {SECRET}"
        )
    return text.strip().encode()


def redis_address(url: str, password_file: Path | None) -> str:
    """The address of Redis with the password from the file, hidden from lists of processes. Raises BadRequest."""
    return _with_password("--redis-password-file", url, password_file)


def database_address(url: str | None, password_file: Path | None, *, heed_environment: bool = True) -> str | None:
    """The address of the database, from the options or else the environment; None for SQLite. Raises BadRequest."""
    option = "--database-password-file"
    if url is None and heed_environment:
        url = os.environ.get(DATABASE) or None
        named = os.environ.get(DATABASE_PASSWORD_FILE)
        if url and named and password_file is None:
            option, password_file = DATABASE_PASSWORD_FILE, Path(named)
    if url is None and password_file is not None:
        raise BadRequest(f"{option} {password_file}: name the database by --database too")
    return None if url is None else _with_password(option, url, password_file)


def _with_password(option: str, url: str, file: Path | None) -> str:
    if file is None:
        return url
    password = _read(option, file).strip()
    if not password:
        raise BadRequest(f"{option} {file} is empty; write the password of the user in the address into it")
    return with_password(url, password)


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadRequest(f"cannot read {option} {path}: {why}") from error


AUTO = "auto"
DEFAULT_LISTEN = "127.0.0.1:50051"
DEFAULT_PAGES = "127.0.0.1:8080"
_DAY_S = 86_400.0
_MOST_DIGITS = 18
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%?)")

State = Annotated[
    Path | None,
    typer.Option("--state", help="Folder of the one-machine stack (else FRACTUNE_STATE, else the user data folder)."),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="postgresql://USER@HOST:PORT/NAME (else FRACTUNE_DATABASE, else SQLite in the state).",
    ),
]
DatabasePasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--database-password-file",
        help="File with the password of the user that --database names (of FRACTUNE_DATABASE: else"
        " FRACTUNE_DATABASE_PASSWORD_FILE).",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        help="Use this server (else FRACTUNE_SERVER, else the stack in the state folder, else a new one).",
    ),
]
ReconnectS = Annotated[
    float, typer.Option("--reconnect-s", min=0, max=_DAY_S, help="Seconds to wait for an unreachable server.")
]
OnDone = Annotated[
    str | None,
    typer.Option(
        "--on-done",
        metavar="COMMAND",
        help="Shell command to run here when the job has ended; FRACTUNE_JOB_STATE and others describe the end.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace any file, or a bundle that serves more than the new one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=1,3,224,224",
        help="Shape of an input with open dimensions, or NAME=const:NUMBER: a constant.",
    ),
]
SizesByName = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=128",
        help="Size of all open axes of this name in an ONNX file (see inspect); tune takes several, as NAME=16,64.",
    ),
]
SizesOfBundle = Annotated[
    list[str] | None,
    typer.Option(
        "--size", metavar="NAME=128", help="Only the shapes with this size of the axes of this name in the ONNX file."
    ),
]
Lengths = Annotated[
    list[str] | None,
    typer.Option(
        "--lengths",
        metavar="INPUT:AXIS=16,64",
        help="As --size, by the place of an axis; auto takes the sizes from --sample.",
    ),
]
Sample = Annotated[
    Path | None, typer.Option("--sample", help="File with lengths as they are served, one a line, for --lengths auto.")
]
MostBuckets = Annotated[
    int | None, typer.Option("--most-buckets", min=1, max=64, help="Most lengths of --lengths auto. [default: 4]")
]
Pad = Annotated[
    list[str] | None, typer.Option("--pad", metavar="NAME=1", help="Number that pads this input; 0 for the others.")
]
PaddingError = Annotated[
    str | None, typer.Option("--padding-error", metavar="1%", help="Allow padding that changes outputs by this part.")
]
Only = Annotated[str, typer.Option("--only", help="Only operators whose name contains one of these (A,B).")]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Only implementations with the rounding of the operators: no Winograd, no Triton."),
]
CheckInputs = Annotated[
    Path | None,
    typer.Option(
        "--check-inputs",
        metavar="FILE.npz",
        help="Inputs of your own, by numpy.savez, on which the bundle is compared with the model too.",
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", metavar="NAME", help="Share searches and the log within this namespace only.")
]
ModelFile = Annotated[
    Path,
    typer.Argument(
        help="ONNX file, TVM IRModule as JSON, or torch.export file; for tune and inspect also a folder of them."
    ),
]
RunScript = Annotated[
    bool,
    typer.Option("--run-script", help="The model is a Python file (TVMScript): run its code here, send its module."),
]
Target = Annotated[str, typer.Option("--target", help="TVM target (default: the measuring processor's own).")]


@dataclass(frozen=True)
class Serving:
    """Options of an address to serve at."""

    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="HOST:PORT or unix:PATH.")] = (
        DEFAULT_LISTEN
    )
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address that other machines can reach without credentials.")
    ] = False
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Address for metrics and health over HTTP; over HTTPS with --tls-cert if others can reach it.",
        ),
    ] = None
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="TLS certificate. Calls then need tokens.")] = None
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The key of --tls-cert.")] = None
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", help="With TLS: authority of client certificates, which replace tokens."),
    ] = None

    audit: Annotated[
        Path | None, typer.Option("--audit", help="File that gets a line for each call: who, what, and its result.")
    ] = None

    def parsed(self) -> dict[str, Any]:
        """The fields of these names in `ServerOptions`. Raises BadRequest if an option lacks its counterpart."""
        tls = None
        if self.tls_cert is not None and self.tls_key is not None:
            tls = TlsFiles(self.tls_cert, self.tls_key, self.client_ca)
        elif self.tls_cert is not None or self.tls_key is not None:
            raise BadRequest("--tls-cert and --tls-key go together; pass both")
        elif self.client_ca is not None:
            raise BadRequest(f"--client-ca {self.client_ca}: client certificates need TLS; pass --tls-cert too")
        given = {"listen": self.listen, "insecure": self.insecure, "metrics": self.metrics, "audit": self.audit}
        return {**given, "tls": tls}


@dataclass(frozen=True)
class Place:
    """Options that find the server."""

    server: Server = None
    state: State = None

    def check_record(self, *, record: bool) -> None:
        """Raises BadRequest if a command that runs on this machine has a server and nothing to record there."""
        if not record and (self.server or self.state):
            raise BadRequest("--server and --state are for --record, which keeps the result there; add it")


@dataclass(frozen=True)
class JobPlace(Place):
    """Options that find the server of a job."""

    reconnect_s: ReconnectS = RECONNECT_S


@dataclass(frozen=True)
class ModelOptions:
    """Options that describe the model."""

    inputs: Inputs = None
    sizes: SizesByName = None
    run_script: RunScript = False
    target: Target = ""
    namespace: Namespace = ""

    def parsed(self) -> dict[str, Any]:
        """The arguments of the Python API. Raises BadRequest."""
        return {**vars(self), "inputs": parse_inputs(self.inputs), "sizes": parse_one_size(self.sizes)}


@dataclass(frozen=True)
class Padding:
    """Options of the padding of a bundle for several shapes."""

    pad: Pad = None
    padding_error: PaddingError = None

    def parsed(self) -> dict[str, Any]:
        """The arguments of the Python API. Raises BadRequest."""
        error = 0.0 if self.padding_error is None else parse_part("--padding-error", self.padding_error)
        return {"pad": parse_pad(self.pad), "padding_error": error}


def read_key(option: str, path: Path) -> bytes:
    """The content of a key's PEM file. Raises BadRequest if it cannot be read."""
    try:
        return read_small(path)
    except OSError as error:
        raise BadRequest(f"{option} {path}: cannot be read ({error.strerror})") from error


def parse_numbers(option: str, text: str) -> list[int]:
    """Read `1,2,4`. Raises BadRequest."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadRequest(f"{option} '{text}': write whole numbers, such as 1,2") from None


def parse_part(option: str, text: str) -> float:
    """Read `10%` or `0.1`, both a tenth. Raises BadRequest for other texts, and above 100 %."""
    form = _PART.fullmatch(text.strip())
    if form is None:
        raise BadRequest(f"{option} '{text}': write a percentage such as 10% or a fraction such as 0.1")
    part = float(form[1]) / 100 if form[2] else float(form[1])
    if part > 1:
        hint = f"; write {text.strip()}% for a percentage" if not form[2] and part <= 100 else ""
        raise BadRequest(f"{option} '{text}': it must be from 0 to 100 % (0 to 1){hint}")
    return part


def parse_pad(texts: list[str] | None) -> dict[str, float] | None:
    """Read `NAME=1` options. Raises BadRequest for another form, and for an input with two numbers."""
    found: dict[str, float] = {}
    for text in texts or []:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise BadRequest(f"--pad '{text}': write NAME=NUMBER, such as input_ids=1") from None
        if not name or not math.isfinite(value):
            raise BadRequest(f"--pad '{text}': write NAME=NUMBER, such as input_ids=1")
        if name in found:
            raise BadRequest(f"--pad '{text}': '{name}' has a number already; give one")
        found[name] = int(value) if value.is_integer() else value
    return found or None


def parse_inputs(texts: list[str] | None) -> dict[str, Input]:
    """Read `NAME=1,3,224,224` and `NAME=const:16000` options. An input may have both. Raises BadRequest for another
    form, and for an input with two shapes or two constants.
    """
    shapes, constants = _read_inputs(texts)
    several = next((text for text in texts or [] if "|" in text), None)
    if several is not None:
        raise BadRequest(f"--input '{several}': give one shape; tune takes several")
    return _with_constants({name: [size for (size,) in sizes] for name, sizes in shapes.items()}, constants)


def parse_sizes(option: str, texts: list[str] | None) -> dict[str, list[int] | None]:
    """Read `NAME=16,64` options, also `NAME=16|64`; None stands for `NAME=auto`, and for `auto` with an empty name.
    Raises BadRequest.
    """
    found: dict[str, list[int] | None] = {}
    for text in texts or []:
        name, _, sizes = text.rpartition("=")  # `auto` alone has no name
        if name in found:
            raise BadRequest(f"{option} '{text}': '{name}' has sizes already; give them once")
        numbers = sizes.replace("|", ",").split(",")
        if sizes == AUTO:
            found[name] = None
        elif name and all(each.isascii() and each.isdecimal() and len(each) <= _MOST_DIGITS for each in numbers):
            found[name] = sorted(set(map(int, numbers)))
        else:
            raise BadRequest(f"{option} '{text}': write NAME=128, or NAME=16,64 with whole numbers of at least 1")
    return found


def parse_one_size(texts: list[str] | None) -> dict[str, int]:
    """As `parse_sizes`, with one number each."""
    found = parse_sizes("--size", texts)
    several = next((name for name, sizes in found.items() if sizes is None or len(sizes) > 1), None)
    if several is not None:
        raise BadRequest(f"--size '{several}': give one number; tune takes several")
    return {name: sizes[0] for name, sizes in found.items() if sizes}


def parse_several(texts: list[str] | None) -> SeveralShapes:
    """As `parse_inputs`, with `NAME=1,16|64`: an axis with several sizes. Equal axes go together, and so do the n-th
    such axes of two inputs with as many sizes; two such axes of one input give all combinations.
    """
    shapes, constants = _read_inputs(texts)
    return _with_constants(combined_shapes(shapes), constants)


def _with_constants(shapes: Mapping[str, Any], constants: Mapping[str, str]) -> dict[str, Any]:
    both = {name: (shapes[name], constants[name]) for name in shapes if name in constants}
    return {**shapes, **constants, **both}


def _read_inputs(texts: list[str] | None) -> tuple[dict[str, list[tuple[int, ...]]], dict[str, str]]:
    """The sizes of each axis by input, and the constants."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    constants: dict[str, str] = {}
    for text in texts or []:
        name, equals, dims = text.rpartition("=")
        if not equals or not name:
            raise BadRequest(f"--input '{text}': write NAME=1,3,224,224, or NAME={CONSTANT}16000 for a constant")
        is_constant = dims.startswith(CONSTANT)
        if name in (constants if is_constant else shapes):
            what = "constant" if is_constant else "shape"
            raise BadRequest(f"--input '{text}': '{name}' has a {what} already; give one")
        if is_constant:
            constants[name] = dims
            continue
        try:
            axes = [tuple(map(int, dim.split("|"))) for dim in dims.split(",")] if dims else []
        except ValueError:
            raise BadRequest(f"--input '{text}': '{dims}' is not a list of whole numbers such as 1,3,224,224") from None
        if any(size < 1 for sizes in axes for size in sizes):
            raise BadRequest(f"--input '{text}': every size must be at least 1")
        shapes[name] = axes
    return shapes, constants
