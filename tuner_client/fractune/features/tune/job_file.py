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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from fractune.text.toml_table import TableReader, read_toml
from fractune_core.errors import BadRequest

OPTION = "--job"
_COMMAND = "tune"
_MODELS, _HOURS, _FILE = "models", "hours", "file"
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
    """The command lines of each model in the job's file, one after the other in its hours. Other options of the command
    line come after those of the file, and count more. A command line without `--job` is itself.

    Raises BadRequest for a file that is not as the top of this module shows.
    """
    words = [part for word in args for part in (word.split("=", 1) if word.startswith(f"{OPTION}=") else [word])]
    if words[:1] != [_COMMAND] or OPTION not in words:
        yield args
        return
    place = words.index(OPTION)
    if place + 1 == len(words):
        raise BadRequest(f"{OPTION} needs a file; write {OPTION} job.toml")
    path, others = Path(words[place + 1]), [*words[1:place], *words[place + 2 :]]
    lines, hours = read_job(path)
    for line in lines:
        if hours is not None:
            _wait(hours, line[0])
        yield [_COMMAND, *line, *others]


def read_job(path: Path) -> tuple[list[list[str]], Hours | None]:
    """The arguments of each model: its file, then its options. Raises BadRequest."""
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
        own = {name: value for name, value in {**common, **table}.items() if name != _FILE}
        options = [word for name, value in own.items() for word in _words(f"{path.name}: {where}", name, value)]
        lines.append([str(path.parent / file), *options])
    return lines, _hours(whole, content)


def written(file: Path, options: Mapping[str, Any], folder: Path) -> str:
    """A job's file with one model and these options, for a file in `folder`."""
    lines = ["# fractune tune --job THIS_FILE", "", f"[[{_MODELS}]]"]
    path = file.resolve()
    named = path.relative_to(folder) if path.is_relative_to(folder) else path
    lines.append(f"{_FILE} = {json.dumps(str(named))}")
    lines += [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    return "\n".join(lines) + "\n"


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
