"""What fifteen minutes on a lent GPU can decide, in two commands that a host without a network runs.

  scripts/gpu_day pack --carried FOLDER      build all that call A needs, on any machine: minutes of CPU time
  scripts/gpu_day A --carried FOLDER --out OUT       on the host, 420 s
  scripts/gpu_day between --carried FOLDER --times A.tar.gz     what call B needs, from the times of call A
  scripts/gpu_day B --carried FOLDER --out OUT       on the host, 360 s

Exit codes: 0 each step ended well, 1 a step did not (the others ran), 2 a wrong option.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.day import REPOSITORY, Place, run_call
from benchmarks.gpu.plan import Scale, steps_of

_ROOTS = ("", "tuner_core", "tuner_server", "workers", "tuner_runtime", "tuner_client")


def main(args: Sequence[str] | None = None) -> int:
    given = _parse(args)
    carried = given.carried.absolute()
    if given.what == "pack":
        from benchmarks.gpu.packs import pack_all

        pack_all(carried)
        return 0
    if given.what == "between":
        from benchmarks.gpu.packs import pack_second

        pack_second(carried, given.times)
        return 0
    with tempfile.TemporaryDirectory(prefix="fgpu-", dir="/tmp") as work:  # a short path, for the daemon's sockets
        place = Place(given.what, carried, given.out.absolute(), Path(work))
        return run_call(place, steps_of(place, Scale(given.scale, given.peer)), environment(place))


def environment(place: Place) -> dict[str, str]:
    """Of the steps: the carried packages come first, and what they start finds everything."""
    path = [str(place.packages), *(str(REPOSITORY / root) for root in _ROOTS), os.environ.get("PYTHONPATH", "")]
    known = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "TMPDIR": str(place.work)}
    return {**os.environ, **known}


def _parse(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["pack", "A", "between", "B"])
    parser.add_argument("--carried", type=Path, required=True, help="folder beside the tree, below 50 MiB")
    parser.add_argument("--out", type=Path, default=Path("gpu-day"), help="folder of what goes back (gpu-day)")
    parser.add_argument("--times", type=Path, help="the file that call A gave back")
    parser.add_argument("--scale", type=float, default=1.0, help="of all times, in a rehearsal")
    parser.add_argument("--peer", default="nvidia", choices=["nvidia", "simulated"], help="`simulated` in a rehearsal")
    given = parser.parse_args(args)
    if given.what == "between" and given.times is None:
        parser.error("between needs --times, the file that call A gave back")
    if not 0 < given.scale <= 10:
        parser.error(f"--scale is {given.scale:g}; it must be above 0, and at most 10")
    return given


if __name__ == "__main__":
    sys.exit(main())
