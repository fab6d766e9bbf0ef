"""The step `green`: the winners of the shares of MPS, timed in green contexts with as many SMs as instances of MIG."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.plan import GREEN, SHARES
from benchmarks.gpu.step import given_here
from benchmarks.gpu.table_of_times import by_operator, fastest
from fractune.features.packs import measure
from fractune_core.files.packs import Pack, PackedOperator, write_pack
from fractune_core.records import TuningRecord


def main() -> None:
    given = given_here("winners in green contexts")
    chosen = winners(given.times("table"))
    if not chosen:
        raise SystemExit("no candidate was measured, so none has won")
    path = given.work / "green.pack"
    with given.pack("table") as (pack, _):
        write_part(path, pack, chosen)
    out = given.results / "green.times"
    measure(path, GREEN, public_key=None, out=out, minutes=max(1.0, given.left_s) / 60)


def winners(records: Sequence[TuningRecord], shares: Sequence[str] = SHARES) -> dict[str, set[str]]:
    """By workload hash, the fastest candidate of each share."""
    found: dict[str, set[str]] = {}
    for own in by_operator(records).values():
        best = [each for share in shares if (each := fastest(own, share)) is not None]
        if best:
            found[best[0].workload_hash] = {each.candidate_id for each in best}
    return found


def write_part(path: Path, pack: Pack, chosen: Mapping[str, set[str]]) -> None:
    """Write a pack with the chosen candidates, and the untuned default, of the operators that have some."""
    operators: list[PackedOperator] = []
    for each in pack.operators():
        names = chosen.get(each.workload_hash)
        if names:
            kept = [each.candidates[0], *(other for other in each.candidates[1:] if other.candidate in names)]
            operators.append(replace(each, candidates=kept))
    codes = {name.candidate: pack.code(name.candidate) for each in operators for name in each.candidates}
    with path.open("wb") as file:
        write_pack(file, replace(pack.manifest, operators=len(operators), sha256={}), operators, codes, {})


if __name__ == "__main__":
    main()
