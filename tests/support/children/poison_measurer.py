"""A measuring worker as it is, but for what it confines to and what runs in its child: `python -m` this, with
NAME URL LOCK_FOLDER PATIENCE_S [dies]. One that `dies` is killed when its first results are delivered.
"""

import os
import signal
import sys
from pathlib import Path

from fractune_core.fleet.options import WorkerOptions
from fractune_workers.context import ResultTransaction
from fractune_workers.faults import guard
from fractune_workers.main import run_worker
from fractune_workers.measuring import session
from tests.support.children.poison import PoisonConfinement
from tests.support.secret import SECRET

SHARE = "mps:25"
DIES = "dies"


def _send_and_die(transaction: ResultTransaction) -> None:
    _send(transaction)
    os.kill(os.getpid(), signal.SIGKILL)


_send = ResultTransaction.send


def main() -> None:
    name, url, folder, patience_s, *more = sys.argv[1:]
    session.confinement_for = PoisonConfinement  # type: ignore[attr-defined]
    session._CHILD = "tests.support.children.poison_child"
    session._TRIAL_TIMEOUT_S = 1.0
    guard._REOPEN_TIMEOUT_S = float(patience_s)
    if DIES in more:
        ResultTransaction.send = _send_and_die  # type: ignore[method-assign, assignment]
    run_worker(WorkerOptions("measure", url, SECRET, SHARE, None, Path(folder), name))


if __name__ == "__main__":
    main()
