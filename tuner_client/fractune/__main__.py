"""The command `fractune`, and `python -m fractune`."""

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command and end with its exit code. Ctrl-C while its modules load ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # Python's own, which prints a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fractune.cli import main as run
    from fractune.cli.ending import leave

    leave(run())


if __name__ == "__main__":
    main()
