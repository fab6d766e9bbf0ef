"""Running the commands that change a GPU's MIG instances: only when an operator has asked for it by name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu.mig_layout import Command, commands, plan_layout
from fractune_workers.gpu.nvml import Gpu

_TIMEOUT_S = 120.0


def apply_layout(text: str, gpu: Gpu, look_again: Callable[[], Gpu], tell: Callable[[Command], None]) -> Gpu:
    """Divide `gpu` as `text` says and return it as it is then; `tell` is given each command before it is run.

    `look_again` reads the GPU anew. Raises BadRequest for a layout that does not fit, ShareUnavailable when a command
    fails.
    """
    placed = plan_layout(text, gpu)
    for command in commands(placed, gpu):
        if "-cgi" in command:
            _check_mode(text, look_again())
        tell(command)
        _run(command)
    return look_again()


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
