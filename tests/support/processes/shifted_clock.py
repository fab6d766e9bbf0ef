"""A worker or a server whose clock of the day is wrong: `python -m tests.support.processes.shifted_clock HOURS ARGS...`

runs the command line of fractune with `time.time` so many hours ahead: at once, or on SIGUSR1 where HOURS begins with
"later". It stands in for a host whose clock is set, which a test may not do.
"""

import signal
import subprocess
import sys
import time

from tests.support.processes.cli_process import start

_real = time.time
_ahead_s = [0.0]


def start_shifted(hours: str, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A process of the command whose clock is off by so many hours, or will be: `later -24`."""
    return start("-m", "tests.support.processes.shifted_clock", hours, *args, env=env)


def main() -> int:
    when, _, hours = sys.argv[1].rpartition(" ")

    def shift(*_: object) -> None:
        _ahead_s[:] = [float(hours) * 3600]

    if when:
        signal.signal(signal.SIGUSR1, shift)
    else:
        shift()
    time.time = lambda: _real() + _ahead_s[0]
    from fractune.cli import main as run

    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
