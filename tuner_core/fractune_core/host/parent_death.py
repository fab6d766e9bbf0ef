"""No child outlives its parent: the kernel kills it at its parent's death, also after `kill -9`.

Run as a file, `python parent_death.py PARENT_PID COMMAND...` requests this and becomes the command. The request
survives the exec, so it works for programs that know nothing of it, such as redis-server. It fires when the *thread*
that started the process ends; that thread must live as long as the process.
"""

import ctypes
import fcntl
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; end it if that is dead already. A fork does not
    inherit the request.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.stderr.write("the process that started this one is gone\n")
        os._exit(1)


def group_dies_with(pipe: int) -> None:
    """Have the kernel kill the whole group of this process, stopped ones and forks too, when the last process that can
    write to `pipe` has ended. Nothing may be written to it. The group must have no other process that requests this.
    """
    own = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK)  # the request is of a file that was opened once
    os.close(pipe)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  the command comes from the stack itself
