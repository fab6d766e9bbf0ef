"""What the process of a step is given, and how it writes its result."""

import argparse
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.table_of_times import records_in
from benchmarks.support.machine import write_json
from fractune_core.files.packs import Pack
from fractune_core.records import TuningRecord
from fractune_workers.packs.measuring import unpack

_TO_END_S = 3.0
"""of the time of a step: its sessions end"""


@dataclass(frozen=True)
class Given:
    carried: Path
    work: Path
    end_s: float
    """when to be done, by time.monotonic()"""
    peer: str

    @property
    def results(self) -> Path:
        return self.work / "results"

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def times(self, name: str) -> list[TuningRecord]:
        """The records of a step that measured a pack; none where it did not come to any."""
        path = self.results / f"{name}.times"
        return records_in(path) if path.exists() else []

    @contextlib.contextmanager
    def pack(self, name: str) -> Iterator[tuple[Pack, Path]]:
        """A pack that was carried, and the folder that measuring children take in place of a compiler."""
        folder = self.work / "packs" / name
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Pack(self.work / f"{name}.pack")) as opened:
            unpack(opened, folder)
            yield opened, folder

    def write(self, name: str, found: dict[str, Any]) -> None:
        write_json(self.results / f"{name}.json", found)


def given_here(what: str) -> Given:
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--carried", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--peer", default="nvidia")
    args = parser.parse_args()
    return Given(args.carried, args.work, time.monotonic() + args.seconds - _TO_END_S, args.peer)
