"""Dividing a GPU by MIG: the instances that a text names, their places, and the commands that make them.

The commands run only when an operator has asked for it by name.
"""

import re
import subprocess
from collections.abc import Callable, Sequence

from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.planning.devices import BY_NAME, COMPUTE_SLICES, MEMORY_SLICES, PROFILES, Placed, Profile, placements
from fractune_workers.gpu.nvml import Gpu

_TIMEOUT_S = 120.0
_GB_TOLERANCE = 0.15
"""NVIDIA rounds an instance's memory in its name: 18gb is an eighth of 141"""
_PART = re.compile(r"([1-7]g)(?:\.([1-9][0-9]{0,2})gb)?(\+me)?")
_HINT = "write 3g+4g, 1g+1g+2g+3g or, with NVIDIA's names, 3g.71gb+4g.71gb"

_DOUBLE = BY_NAME["1g with double memory"]

Command = tuple[str, ...]


def plan_layout(text: str, gpu: Gpu) -> list[Placed]:
    """The instances that `text` names (`3g+4g`), placed, in the order in which they are to be made.

    Raises BadRequest for text that names none, or for what does not fit; ShareUnavailable for a GPU with other rules.
    """
    if gpu.mig_instances_at_most not in {0, COMPUTE_SLICES}:
        raise ShareUnavailable(
            f"{gpu.name} divides into {gpu.mig_instances_at_most} instances; only the rules of GPUs with "
            f"{COMPUTE_SLICES} are known here: use `nvidia-smi mig -lgip` and `nvidia-smi mig -cgi`"
        )
    wanted = sorted((_profile(part, gpu) for part in _parts(text)), key=PROFILES.index)
    placed = next(placements(wanted), None)
    if placed is None:
        raise BadRequest(
            f"layout '{text}' does not fit: a GPU has {COMPUTE_SLICES} slices of SMs and {MEMORY_SLICES} of memory, of "
            "which 3g and 4g take half each, and 4g is there once; leave something out"
        )
    return placed


def commands(placed: Sequence[Placed], gpu: Gpu) -> list[Command]:
    """The commands to run as root, in order: MIG mode on if it is off, present instances away, the new ones made."""
    mig = ("nvidia-smi", "mig", "-i", gpu.uuid)
    tuples = ",".join(f"{profile.id}:{place}" for profile, place in placed)
    made: list[Command] = []
    if not gpu.mig:
        made.append(("nvidia-smi", "-i", gpu.uuid, "-mig", "1"))
    if gpu.instances:
        made += [(*mig, "-dci"), (*mig, "-dgi")]
    return [*made, (*mig, "-cgi", tuples, "-C")]


def apply_layout(text: str, gpu: Gpu, look_again: Callable[[], Gpu], report: Callable[[Command], None]) -> Gpu:
    """Divide `gpu` as `text` says and return its new state; `report` is given each command before it runs.

    `look_again` reads the GPU again. Raises BadRequest for a layout that does not fit, ShareUnavailable when a command
    fails.
    """
    placed = plan_layout(text, gpu)
    for command in commands(placed, gpu):
        if "-cgi" in command:
            _check_mode(text, look_again())
        report(command)
        _run(command)
    return look_again()


def _parts(text: str) -> list[str]:
    """`1g+me+2g` has two parts: a plus sign before `me` is part of a name."""
    return [part.strip() for part in re.split(r"\+(?!\s*me\b)", text)]


def _profile(part: str, gpu: Gpu) -> Profile:
    match = _PART.fullmatch(part)
    profile = BY_NAME.get(f"{match[1]}{match[3] or ''}") if match else None
    if match is None or profile is None:
        raise BadRequest(f"layout: '{part}' is no instance; {_HINT}")
    if match[2] is None:
        return profile
    for candidate in (profile, _DOUBLE) if profile.name == "1g" else (profile,):
        gb = _gb(candidate, gpu)
        if abs(int(match[2]) - gb) <= _GB_TOLERANCE * gb:
            return candidate
    raise BadRequest(
        f"layout: '{part}' is no instance of {gpu.name}, whose {profile.name} has {_gb(profile, gpu):.0f} GiB"
    )


def _gb(profile: Profile, gpu: Gpu) -> float:
    return gpu.memory_bytes / 2**30 * profile.memory / MEMORY_SLICES


def _check_mode(text: str, gpu: Gpu) -> None:
    """Only now is it known how the GPU divides, and whether the mode that was asked for is in force."""
    if not gpu.mig:
        raise ShareUnavailable(
            f"MIG mode of {gpu.name} is pending, not in force; end every process on the GPU, run "
            f"`nvidia-smi --gpu-reset -i {gpu.uuid}`, and try again"
        )
    plan_layout(text, gpu)


def _run(command: Command) -> None:
    """Raises ShareUnavailable with what the command said."""
    line = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise ShareUnavailable(f"`{line}`: there is no nvidia-smi here; it comes with the NVIDIA driver") from error
    except subprocess.TimeoutExpired as error:
        raise ShareUnavailable(f"`{line}` did not end within {_TIMEOUT_S:g} s; see what `nvidia-smi` says") from error
    if done.returncode != 0:
        said = [text.strip() for text in (done.stdout + done.stderr).splitlines() if text.strip()]
        why = said[-1] if said else f"exit code {done.returncode}"
        raise ShareUnavailable(f"`{line}` failed ({why}); it needs root, and a GPU that no process uses")
