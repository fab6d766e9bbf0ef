"""The step `peers`: the fastest candidates of each share beside cuBLAS and cuDNN there, outputs checked first."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import SHARES
from benchmarks.gpu.step import Given, given_here
from benchmarks.gpu.table.contest import confined
from benchmarks.gpu.table.operations import Operation, operation_of
from benchmarks.gpu.table.verdicts import OURS, verdicts, wrong
from benchmarks.gpu.table_of_times import fastest
from fractune_core.codec.plain_json import from_json
from fractune_core.errors import FractuneError
from fractune_core.files.packs import Pack, PackedOperator
from fractune_core.records import TuningRecord
from fractune_core.shares import Share

OPERATIONS_FILE = "operations.json"
"""of the carried files: what the operators of the pack `table` compute"""
_LEAST_S = 1.0


def main() -> None:
    given = given_here("peers of single operators")
    operations = from_json(list[Operation], json.loads((given.carried / OPERATIONS_FILE).read_text()))
    records = given.times("table")
    found: dict[str, Any] = {}
    faults: list[str] = []
    with given.pack("table") as (pack, folder):
        operators = list(pack.operators())
        for share in SHARES:
            try:
                with confined(Share.parse(share), folder) as child:
                    for operator in operators:
                        if given.left_s < _LEAST_S:
                            raise SystemExit("the time was over")
                        asked = _asked(given, pack, operator, operations, records, share)
                        answer = child.call("hold", given.left_s, **asked)
                        said = [each.text for each in verdicts(answer["contestants"])]
                        faults += [f"{operator.name} at {share}: {each}" for each in wrong(answer["contestants"])]
                        found[f"{asked['operation']['name']} at {share}"] = {**answer, "verdicts": said}
                        print(f"{asked['operation']['name']} at {share}: {'; '.join(said)}", flush=True)
                        given.write("peers", found)
            except FractuneError as error:  # the other shares count all the same
                faults.append(f"{share}: {error}")
    if faults:
        raise SystemExit("; ".join(faults))


def _asked(
    given: Given,
    pack: Pack,
    operator: PackedOperator,
    operations: list[Operation],
    records: list[TuningRecord],
    share: str,
) -> dict[str, Any]:
    """What the confined process is asked: our fastest candidate at the share, or the untuned default."""
    own = [each for each in records if each.workload_hash == operator.workload_hash]
    best = fastest(own, share)
    candidate = best.candidate_id if best is not None else operator.candidates[0].candidate
    path = Path(given.work, f"{candidate}.o")
    path.write_bytes(pack.code(candidate))
    return {
        "operation": asdict(operation_of(operator.args_info, operations)),
        "described": operator.args_info,
        "codes": {f"{OURS} {'tuned' if best else 'untuned'}": str(path)},
        "peer": given.peer,
    }


if __name__ == "__main__":
    main()
