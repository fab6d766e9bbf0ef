"""`fractune tune --job FILE`: the options of several tunings in a file that a repository keeps.

shares = "cpu:1,cpu:2"      # options of all models, by their names on the command line
trials = 256

[hours]                     # optional: models begin between these times of the day, local
begin = "22:00"
end = "06:00"

[[models]]
file = "resnet50.onnx"      # relative to this file

[[models]]
file = "encoder.onnx"
lengths = ["input_ids:1=16,64,128"]
minutes = 30
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fractune.text.toml_table import TableReader, read_toml
from fractune_core.errors import BadRequest

OPTION = "--job"
_COMMAND = "tune"
_MODELS, _HOURS, _FILE = "models", "hours", "file"
_PATHS = ("out", "state", "picture", "sample")
"""options whose value is a path: relative to the job's file, as the model's file is"""
_SHORT = {"-o": "--out"}
_LOOK_S = 30.0


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


def expanded(args: Sequence[str]) -> Iterator[Sequence[str]]:
    """The command lines of each model in the job's file, one after the other in its hours. An option of the command
    line replaces that of the file. A command line without `--job` is itself.

    Raises BadRequest, before the first model, for a file that is not as the top of this module shows.
    """
    words = [part for word in args for part in (word.split("=", 1) if word.startswith(f"{OPTION}=") else [word])]
    if words[:1] != [_COMMAND] or OPTION not in words:
        yield args
        return
    place = words.index(OPTION)
    if place + 1 == len(words):
        raise BadRequest(f"{OPTION} needs a file; write {OPTION} job.toml")
    path, others = Path(words[place + 1]), [*words[1:place], *words[place + 2 :]]
    named = {word.partition("=")[0] for word in others if word.startswith("-")}
    lines, hours = read_job(path, {_SHORT.get(option, option) for option in named})
    for line in lines:
        if hours is not None:
            _wait(hours, line[0])
        yield [_COMMAND, *line, *others]


def read_job(path: Path, replaced: Collection[str] = ()) -> tuple[list[list[str]], Hours | None]:
    """The arguments of each model: its file, then its options without the `replaced` ones. Raises BadRequest."""
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
        model = _beside(path, file)
        if not Path(model).is_file():
            raise BadRequest(f"{path.name}: {where}: {model}: no such file; {_FILE} is relative to {path.name}")
        own = {name: value for name, value in {**common, **table}.items() if name != _FILE}
        options = [
            word
            for name, value in own.items()
            if f"--{name}" not in replaced
            for word in _words(f"{path.name}: {where}", name, _beside(path, value) if name in _PATHS else value)
        ]
        lines.append([model, *options])
    return lines, _hours(whole, content)


def _beside(path: Path, given: Any) -> Any:
    """A path that a job's file gives, from its folder; never one that looks like an option."""
    if not isinstance(given, str):
        return given
    found = str(path.parent / given)
    return f"./{found}" if found.startswith("-") else found


def written(file: Path, options: Mapping[str, Any], folder: Path) -> str:
    """A job's file with one model and these options, for a file in `folder`. Raises BadRequest for a value that must
    not stand in a file that people share, or that TOML cannot hold.
    """
    values = {_FILE: str(file), **options}
    if urlsplit(str(values.get("webhook", ""))).password:
        raise BadRequest("--webhook: its password would stand in the file; leave it out, and give it beside --job")
    values |= {name: _relative(values[name], folder) for name in (_FILE, *_PATHS) if name in values}
    lines = ["# fractune tune --job THIS_FILE", "", f"[[{_MODELS}]]"]
    text = "\n".join([*lines, *(f"{name} = {_toml(value)}" for name, value in values.items())]) + "\n"
    try:
        is_same = tomllib.loads(text.encode().decode())[_MODELS] == [values]
    except ValueError:  # a name that is not UTF-8
        is_same = False
    if not is_same:
        raise BadRequest("--write-job: an option has characters that a TOML file cannot hold; write the file by hand")
    return text


def _relative(path: str, folder: Path) -> str:
    """The path as seen from the folder; absolute if it is not inside. Links stay: the name of a link is the model's."""
    absolute = Path(path).absolute()
    inside = absolute.is_relative_to(folder)
    return str(absolute.relative_to(folder) if inside else absolute)


def _toml(value: Any) -> str:
    """Texts, numbers and lists of them. JSON's texts are TOML's but for one character, its numbers but for infinity."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _words(where: str, name: str, value: object) -> list[str]:
    option = f"--{name}"
    if value is True:
        return [option]
    if value is False:
        return []
    if isinstance(value, str | int | float):
        return [f"{option}={value}"]
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return [f"{option}={each}" for each in value]
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
