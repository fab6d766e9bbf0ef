"""One command for a machine with an NVIDIA GPU: it runs all parts of the suite.

The parts are facts of the machine, its shares, one operator tuned at three shares, the reliability of a measurement
beside others, the matrix of shares, a comparison with stock TVM, a storm of faults, and the tests. Each part fits in
ten minutes, writes its JSON and pictures as soon as it is done, and is skipped the next time unless it is named. A part
that was stopped goes on with its missing pieces. `first-table` runs only when it is named, and takes several runs. The
suite needs no network, changes nothing on the machine, and ends the MPS daemons that it has started. Nothing else may
run on the GPU meanwhile. Exit codes: 0 every part did all of its work, 1 one did not (the others still ran), 2 a wrong
option, 4 no GPU here, 130, 143 and 129 stopped.

Usage: scripts/gpu_suite [--minutes N] [--part NAME]... [--out FOLDER] [--gather FILE] [PART]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks.gpu.gather import gather
from benchmarks.gpu.parts import NAMED, PARTS
from benchmarks.gpu.suite import Plan, run_plan
from benchmarks.gpu.tidy import private_folder
from benchmarks.support.machine import RESULTS
from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu.nvml import open_nvml, visible_gpu


def main(args: Sequence[str] | None = None) -> int:
    plan, gathered = _parse(args)
    try:
        return _run(plan)
    finally:  # also of a suite that is stopped
        if gathered is not None:
            left_out = gather(plan.out, gathered)
            print(f"results and logs in {gathered}" + (f", without {', '.join(left_out)}" if left_out else ""))


def _run(plan: Plan) -> int:
    try:
        # NVML stays open in this process until it ends: an idle GPU stays initialised between the parts' processes.
        gpu = visible_gpu(open_nvml().gpus())
    except ShareUnavailable as error:
        print(f"gpu_suite: no GPU here: {error}", file=sys.stderr)
        return error.exit_code
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    print(f"{gpu.name}: {gpu.arch}, {gpu.sms} SMs, driver {gpu.driver}, {os.cpu_count()} cores; results in {plan.out}")
    try:
        with private_folder() as private:
            return run_plan(plan, gpu, private)
    except KeyboardInterrupt:
        print("gpu_suite: stopped; the same command goes on with the part that was stopped", file=sys.stderr)
        return 128 + signal.SIGINT


def _parse(args: Sequence[str] | None) -> tuple[Plan, Path | None]:
    """The plan, and the file for all results."""
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="for all parts together; with less time each does less")
    parser.add_argument(
        "--part",
        action="append",
        choices=[part.name for part in (*PARTS, *NAMED)],
        default=[],
        help="this part only, also if it is done; repeatable",
    )
    parser.add_argument(
        "named", metavar="PART", nargs="?", choices=[part.name for part in (*PARTS, *NAMED)], help="short for --part"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu", help="folder of results (benchmarks/results/gpu)")
    parser.add_argument("--gather", type=Path, metavar="FILE", help="at the end, all results and logs in this one file")
    given = parser.parse_args(args)
    if given.minutes is not None and not given.minutes > 0:
        parser.error(f"--minutes is {given.minutes:g}; it must be above 0")
    wanted = {*given.part, *filter(None, [given.named])}
    plan = Plan(
        parts=[part for part in (*PARTS, *NAMED) if part.name in wanted] if wanted else list(PARTS),
        again=bool(wanted),
        total_s=None if given.minutes is None else 60 * given.minutes,
        out=given.out.absolute(),
    )
    return plan, given.gather


def _stop(number: int, _: FrameType | None) -> NoReturn:
    """Unwind in order, then end as if the signal had killed us."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
