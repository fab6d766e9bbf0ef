"""Every form of ONNX's operators that an exporter may write, against ONNX Runtime without optimisations.

ONNX's own tests (`benchmarks.onnx_operators`) try an operator's newest meaning on friendly numbers. The forms here add
attributes, axes, sizes, types, old opsets, and the extremes of the types. Each is one node, imported, compiled without
a schedule and compared. The last line counts the wrong numbers, which must be 0.

Usage: python -m benchmarks.operator_forms [--only TEXT] [--part K/N] [--quick] [--out FILE]
"""

from collections import Counter
from typing import Any

from benchmarks.support.form_cases import STATUSES
from benchmarks.support.forms import all_forms
from benchmarks.support.importer_digest import importer_digest
from benchmarks.support.machine import arguments, write_result
from benchmarks.support.node_cases import FAILED, REFUSED, Outcome, run_named

NAME = "operator_forms"
_QUICK = "Softmax-13"
_CHILD = "benchmarks.support.form_cases"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="forms whose name contains this text; written to --out alone")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the K-th of N parts; written to --out alone")
    args = parser.parse_args()
    only = args.only or (_QUICK if args.quick else "")
    part, parts = map(int, args.part.split("/"))
    outcomes = run_named(_CHILD, [name for name in all_forms() if only in name][part - 1 :: parts])
    for name, outcome in outcomes.items():
        if outcome.status == FAILED:
            print(f"{name}: {outcome.detail}")
    counts = Counter(outcome.status for outcome in outcomes.values())
    print("  ".join(f"{status} {counts[status]}" for status in STATUSES))
    if (only or parts > 1) and args.out is None:
        return  # a part of the forms is not the result
    write_result(NAME, args, _result(outcomes))


def _result(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    counts = Counter(outcome.status for outcome in outcomes.values())
    operators: dict[str, dict[str, int]] = {}
    for name, outcome in outcomes.items():
        row = operators.setdefault(name.partition("-")[0], dict.fromkeys(STATUSES, 0))
        row[outcome.status] += 1
    chosen = {
        status: {name: outcome.detail for name, outcome in outcomes.items() if outcome.status == status}
        for status in (FAILED, REFUSED)
    }
    return {
        "importer": importer_digest(),
        "counts": {status: counts[status] for status in STATUSES},
        "operators": operators,
        **chosen,
    }


if __name__ == "__main__":
    main()
