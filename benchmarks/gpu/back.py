"""The step `back`: the tables of all times, and the end of MPS daemons that a step which was cut has left."""

import contextlib
import os
import signal
from pathlib import Path

from benchmarks.gpu.plan import SHARES
from benchmarks.gpu.step import given_here
from benchmarks.gpu.table_of_times import records_in, rows
from fractune_core.cuda import PROGRAM


def main() -> None:
    given = given_here("end of the call")
    for path in sorted(given.results.glob("*.times")):
        records = records_in(path)
        found = {each.share for each in records}
        shares = [each for each in SHARES if each in found] + sorted(found - set(SHARES))
        text = "\n".join(rows(records, shares))
        path.with_suffix(".md").write_text(f"{text}\n", encoding="utf-8")
        print(f"{path.stem}: {len(records)} records")
    for pid in left_daemons(given.work):
        print(f"ended the MPS daemon {pid}, which a step that was cut had left")


def left_daemons(folder: Path) -> list[int]:
    """End the daemons in the folder; their process ids."""
    ended = []
    for pid_file in folder.rglob(f"{PROGRAM}.pid"):
        with contextlib.suppress(ProcessLookupError, ValueError, OSError):
            pid = int(pid_file.read_text())
            os.kill(pid, signal.SIGTERM)
            ended.append(pid)
    return ended


if __name__ == "__main__":
    main()
