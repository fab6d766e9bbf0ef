"""Bundles of first candidates, compiled here and never measured: for a machine whose cores are never free."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import fractune
from benchmarks.support.models import Model, operators_of
from fractune.models.external_data import write_one_file
from fractune_core.shares import GrantedShare

Shapes = Mapping[str, list[int]]


def write_first_bundle(model: Path, shapes: Sequence[Shapes], cores: Sequence[int], out: Path) -> None:
    """One bundle for these shapes of the inputs, with a variant for each number of cores."""
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        whole = Path(folder) / model.name
        write_one_file(model, whole)
        parts = [Path(folder) / f"{number}.fractune" for number in range(len(shapes))]
        for each, part in zip(shapes, parts, strict=True):
            _compile(Model(model.stem, whole, inputs=dict(each)), cores, part)
        if len(parts) > 1:
            fractune.join(parts, out=out, force=True)
        else:
            parts[0].replace(out)


def _compile(model: Model, cores: Sequence[int], out: Path) -> None:
    from fractune_workers.children.compiling.child import compile_bundle
    from fractune_workers.children.tvm_api.target import host_device

    traces = dict(_first_traces(model))
    shares = {
        f"cpu:{count}": GrantedShare(f"cpu:{count}", count, max(cores), "core", 1 << 30, reserved=False)
        for count in cores
    }
    fields = {
        "model": {"name": model.path.name, "sha256": hashlib.sha256(model.path.read_bytes()).hexdigest()},
        "device": host_device().to_json(),
        "shares": {name: granted.to_json() for name, granted in shares.items()},
    }
    variants = [*({"name": name, "traces": traces} for name in shares), {"name": "untuned", "traces": {}}]
    compile_bundle(str(model.path), model.inputs, "", variants, fields, [], str(out))


def _first_traces(model: Model) -> Iterator[tuple[str, str]]:
    """By workload, the trace of the first candidate."""
    from fractune_workers.children.searching.operator_search import OperatorSearch
    from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
    from fractune_workers.children.tvm_api.target import default_target
    from fractune_workers.children.tvm_api.traces import read_workload

    target = default_target(1)
    load_intrinsics(target)
    for operator in operators_of(model):
        search = OperatorSearch(read_workload(operator.workload), target, seed=0, threads=1)
        for found in search.propose(1, str):
            yield operator.workload_hash, found["trace"]
