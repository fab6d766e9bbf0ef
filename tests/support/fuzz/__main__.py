"""Gives fractune's readers and a real server inputs that nobody meant, and counts what becomes of them.

Inputs are made from valid ones by a seed: input 7 of a target is the same every time. An input is refused when the
reader raises one of fractune's own errors, of one line, or the server answers with the status that belongs to one. It
has failed when anything else happens: another error, a status of UNKNOWN or INTERNAL, no end within the deadline, or a
server that is gone. The exit code is 0 when none failed.

Usage: scripts/fuzz [--inputs N] [--seed S] [--target NAME] [--first I] [--out FILE]
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.support.machine import facts
from tests.support.fuzz import files, onnx_files, sealed, served, texts
from tests.support.fuzz.target import Outcome, Target, fuzz

TARGETS: tuple[Target, ...] = (*texts.TARGETS, *files.TARGETS, *sealed.TARGETS, *served.TARGETS, *onnx_files.TARGETS)


def shared_out(targets: Sequence[Target], inputs: int) -> list[int]:
    """How many inputs each target gets, by their weights; one at least."""
    whole = sum(target.weight for target in targets)
    return [max(1, round(inputs * target.weight / whole)) for target in targets]


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [f"{'target':24} {'inputs':>9} {'refused':>9} {'accepted':>9} {'failures':>9} {'slowest':>9}"]
    for each in outcomes:
        counts = f"{each.inputs:9} {each.refused:9} {each.accepted:9} {each.failures:9}"
        lines.append(f"{each.target:24} {counts} {each.slowest_s * 1e3:6.0f} ms")
    return "\n".join(lines)


def main() -> int:
    logging.disable(logging.CRITICAL)  # each refusal would be a line
    args = _arguments()
    chosen = [target for target in TARGETS if args.target in (None, target.name)]
    if not chosen:
        names = ", ".join(target.name for target in TARGETS)
        sys.stderr.write(f"no target '{args.target}'; there are {names}\n")
        return 2
    outcomes = []
    for target, inputs in zip(chosen, shared_out(chosen, args.inputs), strict=True):
        outcomes.append(fuzz(target, inputs, args.seed, args.first))
        for example in outcomes[-1].examples:
            sys.stderr.write(f"{target.name}: {example}\n")
    sys.stdout.write(f"{table(outcomes)}\n")
    if args.out is not None:
        told = {"seed": args.seed, "first": args.first, "machine": facts(), "targets": list(map(asdict, outcomes))}
        args.out.write_text(json.dumps(told) + "\n")
    return 1 if any(each.failures for each in outcomes) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", help="this one alone")
    parser.add_argument(
        "--first", type=int, default=0, help="number of each target's first input: to go on, or to see one again"
    )
    parser.add_argument("--out", type=Path, help="write the counts here as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
