"""`fractune tune --job FILE`: the options of several tunings in a file that a repository keeps.

shares = "cpu:1,cpu:2"      # options of all models, by their names on the command line
trials = 256
out-dir = "bundles"         # every path is relative to this file

[hours]                     # optional: models begin between these times of the day, local
begin = "22:00"
end = "06:00"

[[models]]
file = "resnet50.onnx"

[[models]]
file = "encoder.onnx"
lengths = ["input_ids:1=16,64,128"]
minutes = 30
"""

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fractune.text.toml_table import TableReader, Value, read_toml, toml_lines
from fractune_core.errors import BadRequest

OPTION = "--job"
_COMMAND = "tune"
_MODELS, _HOURS, _FILE = "models", "hours", "file"
_LOOK_S = 30.0
_V = TypeVar("_V")
PATHS = frozenset(
    ("out", "out-dir", "picture", "sample", "state", "ca", "token-file", "client-cert", "client-key", "check-inputs")
)
"""options that are paths, and relative to the job's file as the models are"""


@dataclass(frozen=True)
class Hours:
    """A part of the day, in minutes since midnight; it may pass midnight."""

    begin: int
    end: int

    def wait_s(self, now: datetime) -> float:
        """Seconds until it begins; 0 within it."""
        minute = 60 * now.hour + now.minute
        is_within = self.begin <= minute < self.end if self.begin < self.end else not self.end <= minute < self.begin
        if is_within:
            return 0.0
        begin = now.replace(hour=self.begin // 60, minute=self.begin % 60, second=0, microsecond=0)
        return ((begin if begin > now else begin + timedelta(days=1)) - now).total_seconds()


@dataclass(frozen=True)
class Line:
    """A command line, and for a model of a job's file or folder which one it is."""

    args: Sequence[str]
    job: Path | None = None
    number: int = 0
    """of the model in the file, from 1"""
    models: int = 0
    """in the file"""
    hours: Hours | None = None
    """in which it may begin"""

    @property
    def place(self) -> str:
        """What errors begin with."""
        return "" if self.job is None else f"{self.job}: {self._model}: "

    def begin(self) -> None:
        """Wait for the hours, then say that the work of a model of a job's file begins."""
        if self.hours is not None:
            _wait(self.hours, self._model)
        if self.job is None:
            return
        if "--json" in self.args:
            shown = {"job_file": str(self.job), "file": self._model, "number": self.number, "models": self.models}
            print(json.dumps({"event": "model", **shown}), flush=True)
        elif "--quiet" not in self.args:
            print(f"{self._model} begins, {self.number} of {self.models} in {self.job}", file=sys.stderr, flush=True)

    @property
    def _model(self) -> str:
        return self.args[1]


def expanded(args: Sequence[str]) -> list[Line]:
    """The command lines of each model in the job's file, or of each graph in a folder. Other options of the command
    line come after those of the file, and replace those of the same name. A command line without both is itself.

    Raises BadRequest for a file that is not as the top of this module shows, and BadModel for a folder.
    """
    words = [part for word in args for part in (word.split("=", 1) if word.startswith(f"{OPTION}=") else [word])]
    if words[:1] == [_COMMAND] and len(words) > 1 and Path(words[1]).is_dir():
        return _lines_of_folder(Path(words[1]), words[2:])
    if words[:1] != [_COMMAND] or OPTION not in words:
        return [Line(args)]
    place = words.index(OPTION)
    if place + 1 == len(words):
        raise BadRequest(f"{OPTION} needs a file; write {OPTION} job.toml")
    path, others = Path(words[place + 1]), [*words[1:place], *words[place + 2 :]]
    lines, hours = read_job(path, {_name(word) for word in others if word.startswith("-")})
    for model, *_ in lines:
        if not Path(model).is_file():
            raise BadRequest(f"{path.name}: {model}: no such file; models are relative to {path.name}")
    return [Line([_COMMAND, *line, *others], path, at, len(lines), hours) for at, line in enumerate(lines, 1)]


def _lines_of_folder(folder: Path, options: Sequence[str]) -> list[Line]:
    """The command line of each graph of an exported model; sizes of the command line replace those of the
    configuration. Raises BadModel, and BadRequest for one file for several bundles.
    """
    from fractune.models.model_folder import read_folder, size_options

    found = read_folder(folder)
    count = len(found.graphs)
    given = {_name(word) for word in options if word.startswith("-")}
    if count > 1 and {"out", "write-job"} & given:
        raise BadRequest(f"{folder}: {count} graphs, and one file for them; give --out-dir, or name one graph")
    others, texts = _apart(options)
    lines = []
    for at, (each, sizes) in enumerate(zip(found.graphs, found.sizes(dict.fromkeys(texts, 0)), strict=True), 1):
        own = size_options({name: numbers for name, numbers in sizes.items() if name not in texts})
        own += [word for name in texts if name in sizes for word in ("--size", f"{name}={texts[name]}")]
        others_here = [word for word in others if each.has_logits or word != "--greedy"]
        lines.append(Line([_COMMAND, _in(Path(), str(each.path)), *own, *others_here], folder, at, count))
    return lines


def _apart(options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The other words, and the sizes of `--size NAME=SIZES` by name."""
    others, texts = list[str](), dict[str, str]()
    words = iter(options)
    for word in words:
        text = next(words, "") if word == "--size" else word.removeprefix("--size=")
        name, _, sizes = text.rpartition("=")
        if word == text:
            others.append(word)
        elif name in texts:
            raise BadRequest(f"--size '{text}': '{name}' has sizes already; give them once")
        else:
            texts[name] = sizes
    return others, texts


def read_job(path: Path, replaced: Collection[str] = ()) -> tuple[list[list[str]], Hours | None]:
    """The arguments of each model: its file, then its options but those `replaced`. Raises BadRequest."""
    content = read_toml(path, "the job")
    whole = TableReader(path.name, content)
    tables = content.get(_MODELS, [])
    if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
        raise BadRequest(f"{path.name}: it names no model; add [[{_MODELS}]] with {_FILE} = 'model.onnx'")
    common = {name: value for name, value in content.items() if name not in (_MODELS, _HOURS)}
    lines = []
    for number, table in enumerate(tables):
        where = f"{_MODELS}[{number}]"
        file = table.get(_FILE)
        if not isinstance(file, str) or not file:
            raise BadRequest(f"{path.name}: {where} has no {_FILE}; write {_FILE} = 'model.onnx'")
        own = {name: value for name, value in {**common, **table}.items() if name != _FILE and name not in replaced}
        own = _with_paths(own, partial(_in, path.parent))
        options = [word for name, value in own.items() for word in _words(f"{path.name}: {where}", name, value)]
        lines.append([_in(path.parent, file), *options])
    return lines, _hours(whole, content)


def written(file: Path, options: Mapping[str, Value], folder: Path) -> str:
    """A job's file with one model and these options, for a file in `folder`. Raises BadRequest for what TOML cannot
    hold.
    """
    own = _with_paths(options, partial(_from, folder))
    return f"# fractune tune --job THIS_FILE\n\n[[{_MODELS}]]\n{toml_lines({_FILE: _from(folder, file), **own})}"


def _name(word: str) -> str:
    """The key in a job's file for an option on the command line, such as `--trials=8`."""
    return "out" if word == "-o" else word.partition("=")[0].removeprefix("--")


def _with_paths(options: Mapping[str, _V], changed: Callable[[str], _V]) -> dict[str, _V]:
    """The options with their paths changed. A path that begins with `~` stays: the option itself reads it."""
    return {
        name: changed(value) if name in PATHS and isinstance(value, str) and value[:1] != "~" else value
        for name, value in options.items()
    }


def _in(folder: Path, path: str) -> str:
    """A path relative to `folder`, made relative to the current folder. A name that begins with `-` gets `./` in front,
    so that it is not read as an option.
    """
    found = str(folder / path)
    return f"./{found}" if found.startswith("-") else found


def _from(folder: Path, path: str | Path) -> str:
    """The path from `folder` to a file in it; any other path absolute. Links stay: the target of a link may have
    another name, as in the cache of a model hub.
    """
    whole, start = Path(path).absolute(), folder.absolute()
    return str(whole.relative_to(start) if whole.is_relative_to(start) else whole)


def _words(where: str, name: str, value: object) -> list[str]:
    option = f"--{name}"
    if value is True:
        return [option]
    if value is False:
        return []
    if isinstance(value, str | int | float):
        return [option, str(value)]
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return [word for each in value for word in (option, str(each))]
    raise BadRequest(f"{where}: {name} is a {type(value).__name__}; write a text, a number, true, or a list of texts")


def _hours(whole: TableReader, content: Mapping[str, Any]) -> Hours | None:
    if _HOURS not in content:
        return None
    table = whole.table(_HOURS)
    table.check_keys("begin", "end")
    begin, end = (_minute(table, name) for name in ("begin", "end"))
    if begin == end:
        raise BadRequest(f"{whole.where}: the {_HOURS} begin and end at the same time; write two times")
    return Hours(begin, end)


def _minute(table: TableReader, name: str) -> int:
    text = table.text(name)
    hours, colon, minutes = text.partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and int(hours) < 24 and int(minutes) < 60):
        raise BadRequest(f"{table.where}: {name} is '{text}'; write a time of the day, such as '22:00'")
    return 60 * int(hours) + int(minutes)


def _wait(hours: Hours, model: str) -> None:
    """Until the hours; a line says so."""
    wait_s = hours.wait_s(datetime.now().astimezone())
    if wait_s:
        begin = f"{hours.begin // 60:02}:{hours.begin % 60:02}"
        print(f"{Path(model).name} waits until {begin}", file=sys.stderr, flush=True)
    while (wait_s := hours.wait_s(datetime.now().astimezone())) > 0:
        time.sleep(min(wait_s, _LOOK_S))
