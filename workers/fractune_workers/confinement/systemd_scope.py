"""A scope of systemd with a CPU limit, for a process that may not make a cgroup itself.

`systemd-run --scope` asks the manager of the system or of the user for a cgroup, enters it and becomes the process. The
manager removes the cgroup when its last process has ended, however that ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from fractune_core.cpu_limits import USUAL_PERIOD_MS, LimitSize
from fractune_core.errors import one_line, shortened

PROGRAM = "systemd-run"
_TIMEOUT_S = 20.0
_MOST_CHARACTERS = 300
"""of its words in a message"""


@dataclass(frozen=True)
class SystemdScope:
    """The scope for a limit. A request has this weight, by the name of the property that the cgroup's version has."""

    size: LimitSize
    weight: str = ""

    @property
    def command(self) -> list[str]:
        """What stands in front of the command of the limited process."""
        properties = [f"CPUQuota={self.size.limit_m / 10:g}%"]
        if self.size.period_ms != USUAL_PERIOD_MS:
            properties.append(f"CPUQuotaPeriodSec={self.size.period_ms}ms")
        if self.weight:
            properties.append(self.weight)
        manager = [] if os.geteuid() == 0 else ["--user"]
        settings = [word for each in properties for word in ("-p", each)]
        return [PROGRAM, *manager, "--scope", "--quiet", *settings, "--"]

    def lacks(self) -> str:
        """Why systemd gives no such scope, found by trying it; empty when it does."""
        if shutil.which(PROGRAM) is None:
            return f"there is no {PROGRAM}"
        try:
            tried = subprocess.run(
                [*self.command, "true"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{PROGRAM} does not work: {error}"
        said = one_line(" ".join(tried.stderr.split()))
        why = shortened(said, _MOST_CHARACTERS) or f"exit code {tried.returncode}"
        return f"{PROGRAM} refuses ({why})" if tried.returncode else ""
