"""A part of the suite: its inputs and its results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support.machine import write_json
from fractune_workers.gpu.nvml import Gpu


class PartFailed(Exception):
    """A part could not do its task; the message says why. The other parts still run."""


@dataclass(frozen=True)
class Slice:
    """The time and the places of one part."""

    budget_s: float
    """what the part plans its work by"""
    deadline: float
    """on the clock of time.monotonic(): what still runs then is ended"""
    gpu: Gpu
    out: Path
    """folder for JSON and pictures, shared by all parts"""
    private: Path
    """folder for everything else, which goes with the suite; the TMPDIR of what the parts start"""
    done: Path | None = None
    """folder for the pieces of this part that are done, until all of it is; None = `done` in `private`"""

    def once(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The findings of `work`; what an earlier run of this part found, if it got so far. Written at once."""
        path = (self.done or self.private / "done") / f"{name.replace(':', '-').replace(' ', '_')}.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = work()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, found)
        else:
            print(f"  {name}: kept from an earlier run", flush=True)
        return found

    @property
    def logs(self) -> Path:
        """The folder with the whole output of each command."""
        return self.private / "said"

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def advice(self) -> Path:
        """State folder that `fractune noise` saves its advice in, and later parts take it from."""
        return self.out / "advice"


@dataclass(frozen=True)
class Finding:
    """The findings of a part."""

    line: str
    """for people: the ratios against their bars"""
    data: dict[str, Any]
    """for its JSON"""
    faults: tuple[str, ...] = ()
    """what did not go well; empty for a part that did all of its work"""


@dataclass(frozen=True)
class Part:
    name: str
    question: str
    full_s: float
    """seconds for all of its work, below 10 minutes; with less it does less, and says so"""
    run: Callable[[Slice], Finding]
    """Raises PartFailed."""
