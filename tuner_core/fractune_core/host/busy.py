"""CPU time that the programs of a machine have used."""

from __future__ import annotations

import os
from pathlib import Path


def busy_s() -> float:
    """Of all programs and the kernel since the start of the machine, in seconds."""
    user, nice, system, _, _, irq, soft_irq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")
