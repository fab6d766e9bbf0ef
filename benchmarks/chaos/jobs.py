"""The jobs of a run: small real models, submitted one after the other to a server that comes and goes."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import fractune
from fractune.errors import ServerUnreachable, ShareUnavailable
from fractune.server.job_status import JobStatus
from tests.support.processes.cli_process import write_model

OPEN_AT_ONCE = 4
_CHANNELS = (8, 16, 24, 32)
"""models of other channels have other operators: some jobs find theirs tuned or under way, some do not"""
_CALL_TIMEOUT_S = 5.0
_MOST = 1_000_000


@dataclass(frozen=True)
class Request:
    """One job to ask for."""

    model: Path
    shares: str
    candidates: int
    """new ones, beyond what the log holds"""
    seed: int


def requests(folder: Path, seed: int, shares: Sequence[str], candidates: int) -> Iterator[Request]:
    """Jobs without end; the same seed asks for the same ones."""
    rng = random.Random(seed)
    models = [write_model(folder / f"small{each}.onnx", each, seed) for each in _CHANNELS]
    number = 0
    while True:
        wanted = rng.sample(shares, rng.randint(1, len(shares)))
        yield Request(rng.choice(models), ",".join(sorted(wanted)), candidates, number)
        number += 1


class Submitter:
    """Keeps a few jobs open. A server that does not answer, or that just lost its measurer, gets the request again at
    the next `tend`.
    """

    def __init__(self, address: str, wanted: Iterator[Request]) -> None:
        self._address = address
        self._wanted = wanted
        self._next = next(wanted)
        self.asked = 0
        self.jobs: dict[str, JobStatus] = {}
        """as last seen, by name; a submitted job without an answer, lost by a kill, is there too"""

    @property
    def open(self) -> list[JobStatus]:
        return [job for job in self.jobs.values() if job.state.open]

    def tend(self, *, more: bool) -> None:
        """Look how the jobs stand, and ask for another one if `more` are wanted and there is room."""
        try:
            with fractune.connect(self._address, timeout_s=_CALL_TIMEOUT_S) as client:
                self.jobs.update({job.name: job for job in client.jobs(limit=_MOST)})
                if more and len(self.open) < OPEN_AT_ONCE:
                    self._submit(client)
        except (ServerUnreachable, ShareUnavailable):
            return

    def _submit(self, client: fractune.Client) -> None:
        wanted = self._next
        job = client.submit(
            wanted.model, wanted.shares, extra_trials=wanted.candidates, only="conv2d", seed=wanted.seed, round_size=8
        )
        self.asked, self._next = self.asked + 1, next(self._wanted)
        self.jobs[job.name] = job.status()
