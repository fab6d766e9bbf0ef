"""Launcher of the stack's processes: the kernel kills them when the process that started them dies.

Run as a file, `python lifeline.py PARENT_PID COMMAND...`: it asks for SIGKILL at the parent's death and
becomes the command. The request survives the exec, so it holds for programs that know nothing of it, such as
redis-server. It fires when the *thread* that started the process ends; that thread must live as long as the
process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid = int(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the request; then there is nobody left to fire it.
    if os.getppid() != parent_pid:
        sys.exit("the process that started this one is gone")
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  - the command comes from the stack itself


if __name__ == "__main__":
    main()
