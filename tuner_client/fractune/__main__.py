"""The command `fractune`, and `python -m fractune`."""

import signal
import sys


def main() -> int:
    """Run the command and return its exit code. Ctrl-C while its modules load ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # Python's own, which prints a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fractune.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
