"""ONNX's own tests of its operators, through the importer: how many pass, are refused, and fail.

Each case is imported, compiled without a schedule and compared with ONNX's numbers. A refusal is one clear line, before
anything is compiled; anything else that is not the right numbers is a failure. `--page` writes docs/models.md from the
result file and from the importer's tables, and runs nothing. `--refusals` runs the refused cases that the result file
quotes, and replaces their words: a minute, where all cases take half an hour.

Usage: python -m benchmarks.onnx_operators [--only TEXT] [--quick] [--out FILE] [--page | --refusals]
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.support.importer_digest import importer_digest
from benchmarks.support.machine import RESULTS, arguments, facts, write_json, write_result
from benchmarks.support.models_page import PAGE, models_page
from benchmarks.support.node_cases import FAILED, REFUSED, STATUSES, node_cases, operator_of_case, run_named

NAME = "onnx_operators"
_QUICK = "quantizelinear"
_CHILD = "benchmarks.support.node_cases"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this text; written to --out alone")
    parser.add_argument("--page", action="store_true", help="write docs/models.md and run nothing")
    parser.add_argument("--refusals", action="store_true", help="update the words of the refusals in the result file")
    args = parser.parse_args()
    if args.page:
        PAGE.write_text(models_page(RESULTS / f"{NAME}.json"), encoding="utf-8")
        return
    if args.refusals:
        update_refusals(RESULTS / f"{NAME}.json")
        return
    only = args.only or (_QUICK if args.quick else "")
    cases = {name: case for name, case in node_cases().items() if only in name}
    outcomes = run_named(_CHILD, list(cases))
    operators: dict[str, dict[str, Any]] = {}
    for name, outcome in outcomes.items():
        row = operators.setdefault(operator_of_case(cases[name]), {**dict.fromkeys(STATUSES, 0), "refusals": {}})
        row[outcome.status] += 1
        if outcome.status == REFUSED:
            row["refusals"].setdefault(outcome.detail, name)
    counts = Counter(outcome.status for outcome in outcomes.values())
    failures = {name: outcome.detail for name, outcome in outcomes.items() if outcome.status == FAILED}
    for name, detail in failures.items():
        print(f"{name}: {detail}")
    print("  ".join(f"{status} {counts[status]}" for status in STATUSES))
    data = {
        "importer": importer_digest(),
        "counts": {status: counts[status] for status in STATUSES},
        "failures": failures,
        "operators": operators,
    }
    if only and args.out is None:
        return  # a part of the cases is not the result
    write_result(NAME, args, data)


def update_refusals(results: Path) -> None:
    """Replace the words of the refusals in the result file, each by those of the case that it names. The counts stay:
    they are of the last run of all cases. Raises SystemExit for a case that is not refused any more.
    """
    data = json.loads(results.read_text(encoding="utf-8"))
    rows = data["operators"].values()
    outcomes = run_named(_CHILD, list(dict.fromkeys(name for row in rows for name in row["refusals"].values())))
    for name, outcome in outcomes.items():
        if outcome.status != REFUSED:
            raise SystemExit(f"{name} has {outcome.status} and was refused before; run all cases")
    for row in rows:
        row["refusals"] = {outcomes[name].detail: name for name in row["refusals"].values()}
    write_json(results, {**data, "refusals_updated": facts()["time"]})


if __name__ == "__main__":
    main()
