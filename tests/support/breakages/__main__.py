"""Breaks what docs/reliability.md and docs/security.md promise, and looks whether somebody notices.

Each row of tests/assets/breakages names a promise, a few lines that keep it, what stands there instead while it is
broken, and a test. In a copy of this checkout the rows are gone through: one promise is broken, its test is run, and
the lines are put back. The test must fail, or not end in time. The exit code is 0 when every one did.

With --out the results are written after each promise, and those of promises that were not asked for now are kept: a
long run may be done in pieces, and --rest goes on with those that have none in the file.

Usage: scripts/break_promises [--only TEXT] [--list] [--check-unbroken] [--limit SECONDS] [--out FILE [--rest]]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.support.machine import facts, write_json
from benchmarks.support.processes import adopt_orphans
from tests.support.breakages.table import Breakage, breakages
from tests.support.breakages.trial import Checkout, Outcome, Verdict
from tests.support.paths import REPOSITORY

_NOTICED = (Verdict.CAUGHT, Verdict.HUNG)


def main() -> int:
    args = _arguments()
    table = breakages()
    known = _known(args.out) if args.rest else {}
    named = [each for each in table if any(text in f"{each.promise} {each.test}" for text in args.only or [""])]
    if not named:
        sys.stderr.write(f"no promise has any of {args.only} in its words or its test; --list shows all\n")
        return 2
    chosen = [each for each in named if each.promise not in known]
    if args.list:
        for each in chosen:
            _say(f"{each.promise}\n    {each.file}\n    {each.test}")
        return 0
    adopt_orphans()
    noticed = 0
    with tempfile.TemporaryDirectory(prefix="fractune-broken-") as folder:
        checkout = Checkout(Path(folder))
        for each in chosen:
            outcome = _try(checkout, each, args)
            noticed += outcome.verdict in _NOTICED
            _say(f"{outcome.verdict:10} {outcome.secs:5.0f} s  {each.promise}  {outcome.said}"[:200])
            if args.out is not None:
                _note(args.out, table, each, outcome)
    _say(f"{len(chosen)} promises broken, {noticed} caught")
    return 0 if noticed == len(chosen) else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _try(checkout: Checkout, breakage: Breakage, args: argparse.Namespace) -> Outcome:
    if args.check_unbroken:
        whole = checkout.run(breakage, args.limit)
        if whole.verdict is not Verdict.SURVIVED:
            return Outcome(Verdict.NOT_TESTED, whole.secs, f"{whole.verdict} with nothing broken: {whole.said}")
    return checkout.try_broken(breakage, args.limit)


def _known(file: Path | None) -> dict[str, Any]:
    """What the file has of earlier runs, by promise."""
    if file is None or not file.exists():
        return {}
    return {row["promise"]: row for row in json.loads(file.read_text(encoding="utf-8"))["outcomes"]}


def _note(file: Path, table: Sequence[Breakage], breakage: Breakage, outcome: Outcome) -> None:
    """Put the outcome to those that are there, in the order of the table."""
    rows = _known(file) | {breakage.promise: _row(breakage, outcome)}
    known = [rows[each.promise] for each in table if each.promise in rows]
    write_json(file, {"machine": facts(), "promises": len(table), "outcomes": known})


def _row(breakage: Breakage, outcome: Outcome) -> dict[str, Any]:
    revision = subprocess.run(("git", "rev-parse", "--short", "HEAD"), cwd=REPOSITORY, check=True, capture_output=True)
    about = {"promise": breakage.promise, "file": breakage.file, "test": breakage.test}
    return {**about, **asdict(outcome), "revision": revision.stdout.decode().strip()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="promises with this text in their words or their test; again")
    parser.add_argument("--list", action="store_true", help="say what would be broken, and break nothing")
    parser.add_argument("--check-unbroken", action="store_true", help="run each test first with nothing broken")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one run; who takes longer hangs")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    parser.add_argument("--rest", action="store_true", help="leave out those that --out has a result of")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
