"""A forked child of the test, with a deadline."""

import os
import signal
from collections.abc import Callable

_DEADLINE_S = 60


def succeeds_in_child(check: Callable[[], object]) -> bool:
    """Whether `check` is true in a forked child, which the kernel ends if it hangs."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_DEADLINE_S)
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0
