"""The reliability of measurements on this machine, saved for the one-machine stack."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune.features.noise.table import noise_table
from fractune.local.noise_file import NOISE_FILE, check_noise_file, save_noise
from fractune.local.programs import measure_noise
from fractune.local.stack import own_env
from fractune.local.state import default_state_dir
from fractune.models.source import ModelSource, model_file
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.text.figure import Drawable
from fractune.text.rendering import Table
from fractune_core.analysis.noise import FEWEST_CANDIDATES, NoiseAdvice
from fractune_core.errors import BadRequest, one_line
from fractune_core.model_inputs import Inputs, as_shapes
from fractune_core.shares import Share

MOST_CANDIDATES = 200
MOST_MEASURERS = 64
_MEASURERS = {"cpu": (1, 2), "cuda": (1, 2, 4, 8)}
"""numbers of measurers by default, by kind of device"""


@dataclass(frozen=True)
class NoiseResult(Drawable):
    """Agreement of the settings with the careful reference, and the advice that follows."""

    share: str
    operator: str
    """operator of the timed candidates"""
    advice: NoiseAdvice
    """number of concurrent measurers, and the racing margin; `tune` in the same state folder follows the advice"""
    notes: tuple[str, ...]
    saved: Path
    """file with the advice"""
    data: Mapping[str, Any]
    """all data, as `fractune noise --json` prints them: times in seconds, spreads and regrets as fractions"""

    def __repr__(self) -> str:
        advice = f"{self.advice.measurers} measurers at a time, racing margin {self.advice.margin:g}"
        return f"NoiseResult({one_line(self.operator)} at {self.share}: {advice}; saved in {self.saved})"

    @property
    def table(self) -> Table:
        """A row for each setting."""
        return noise_table(self.data)

    def _draw(self, path: Path) -> None:
        """Draw each setting's times over the reference's."""
        from fractune.features.noise.table import draw_noise

        draw_noise(self.data, path)


def noise(
    share: str,
    *,
    measurers: Sequence[int] | None = None,
    candidates: int = 24,
    model: ModelSource | None = None,
    only: str = "",
    inputs: Inputs | None = None,
    run_script: bool = False,
    seed: int = 0,
    state: str | os.PathLike[str] | None = None,
    progress: LineProgress = True,
) -> NoiseResult:
    """Measure how reliable measurements under `share` are here, and how many may run at the same time.

    It times `candidates` (8 to 200) twice in every setting, with each number of `measurers` (default: 1 and 2, on a GPU
    up to 8). The candidates belong to the heaviest operator of `model` with one of the parts in `only` in its name, by
    default to a convolution. The advice goes to `noise.json` in the folder `state`. `progress` prints lines to standard
    error, nothing (False), or calls a function with each line. While it runs, the environment of this process points
    child processes to our packages.

    Raises ShareUnavailable, BadModel, BadRequest, StateUnusable, and FractuneError if too few could be timed.
    """
    requested = Share.parse(share)
    requested.check_measures_kernels()
    counts = list(_MEASURERS[requested.device_kind] if measurers is None else measurers)
    _check(counts, candidates)
    if model is None and (only or inputs):
        raise BadRequest("--only and inputs select an operator of a model; pass --model too")
    noise_file = Path(state or default_state_dir()).expanduser() / NOISE_FILE
    check_noise_file(noise_file)
    with contextlib.ExitStack() as held:
        path = None if model is None else held.enter_context(model_file(model, run_script=run_script))
        held.enter_context(_children_find_us())
        data = measure_noise(
            requested,
            line_reporter(progress),
            measurers=counts,
            candidates=candidates,
            seed=seed,
            model=path,
            inputs=as_shapes(inputs or {}),
            only=only,
        )
    advice = NoiseAdvice(**data["advice"])
    save_noise(noise_file, data["device"], data["share"], advice)
    return NoiseResult(data["share"], data["operator"], advice, tuple(data["notes"]), noise_file, data)


def _check(measurers: Sequence[int], candidates: int) -> None:
    if not measurers or not all(1 <= count <= MOST_MEASURERS for count in measurers):
        raise BadRequest(f"--measurers is {list(measurers)}; name at least one, each from 1 to {MOST_MEASURERS}")
    if not FEWEST_CANDIDATES <= candidates <= MOST_CANDIDATES:
        raise BadRequest(f"--candidates is {candidates}; it must be from {FEWEST_CANDIDATES} to {MOST_CANDIDATES}")


@contextlib.contextmanager
def _children_find_us() -> Iterator[None]:
    """Let child processes import our packages from the place of this process, never from their working directory."""
    before = dict(os.environ)
    added = own_env()
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in added if name in before})
