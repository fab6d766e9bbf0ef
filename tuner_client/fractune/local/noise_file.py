"""`noise.json` in the state folder: the advice of `fractune noise`, by device key and share."""

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fractune_core.analysis.noise import DEFAULT_MARGIN, NoiseAdvice
from fractune_core.errors import StateUnusable

NOISE_FILE = "noise.json"

Advices = dict[str, dict[str, NoiseAdvice]]
"""by device key, then by share as text"""


def load_noise(path: Path) -> Advices:
    """The contents of the file at `path`; empty if it does not exist. Raises StateUnusable for a file that is not
    ours.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {device: {share: _advice(fields) for share, fields in shares.items()} for device, shares in data.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StateUnusable(f"{path}: {error.strerror}; make it readable, or delete it") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateUnusable(f"{path} is damaged; delete it and run 'fractune noise' again") from error


def advice_for(state: Path, shares: Iterable[str]) -> dict[str, NoiseAdvice | None]:
    """The newest advice for each share in a state folder; a folder belongs to one machine. Raises StateUnusable."""
    advices = load_noise(state.expanduser() / NOISE_FILE)
    found = {share: [each[share] for each in advices.values() if share in each] for share in shares}
    return {share: max(of, key=lambda advice: advice.measured_at, default=None) for share, of in found.items()}


def measuring_text(share: str, advice: NoiseAdvice | None, measurers: int) -> str:
    """The number of a share's measurers, the timing of its trials, and the source of the advice."""
    margin = advice.margin if advice else DEFAULT_MARGIN
    number = f"{measurers} measurer{'' if measurers == 1 else 's'}"
    setting = f"{number}; a trial within {margin:g}x of the fastest is timed for longer"
    if advice is None:
        return f"measuring at {share}: {setting} (default; 'fractune noise --share {share}' measures the best settings)"
    day = time.strftime("%Y-%m-%d", time.gmtime(advice.measured_at))
    worth = f"tau {advice.tau:.2f}" if advice.tau is not None else "all ties"
    lost = f", top-1 regret {advice.regret * 100:.1f} %" if advice.regret is not None else ""
    return f"measuring at {share}: {setting} (by 'fractune noise' of {day}: {worth}{lost})"


def save_noise(path: Path, device: str, share: str, advice: NoiseAdvice) -> None:
    """Put one share's advice into the file; the other entries stay, and readers never see a partial file. Raises
    StateUnusable for a damaged file, or a folder that cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _held(path.parent):
            advices = load_noise(path)
            advices.setdefault(device, {})[share] = advice
            _replace(path, {name: {key: asdict(each) for key, each in of.items()} for name, of in advices.items()})
    except OSError as error:
        raise StateUnusable(f"cannot write {path}: {error.strerror}; pass --state with a writable folder") from error


def check_noise_file(path: Path) -> None:
    """Raises StateUnusable now for errors that `save_noise` would raise after minutes of measuring."""
    load_noise(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise StateUnusable(f"cannot write {path}: {error.strerror}; pass --state with a writable folder") from error


def _advice(fields: dict[str, Any]) -> NoiseAdvice:
    advice = NoiseAdvice(**fields)
    numbers = [fields["measurers"], fields["margin"], fields["measured_at"]]
    numbers += [fields[name] for name in ("tau", "regret") if fields[name] is not None]
    if not isinstance(fields["builds_beside"], bool) or not all(isinstance(number, int | float) for number in numbers):
        raise TypeError("a field has a value of another type")
    return advice


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Two commands that end at the same time must not lose an entry."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, data: dict[str, Any]) -> None:
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
