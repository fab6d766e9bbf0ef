"""`fractune pack`: candidates of a model, built here to be measured on another machine."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fractune.features.noise import children_find_us
from fractune.local.programs import make_pack
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.server.rpc import RpcClient
from fractune.sessions.progress import LineProgress, line_reporter
from fractune.sessions.session import PathText, named_server, running_stack_of, session, state_folder
from fractune.text.output_files import check_free, check_writable
from fractune_core.codec.messages import from_proto
from fractune_core.errors import BadRequest
from fractune_core.files.packs import MOST_CANDIDATES, SUFFIX, Pack
from fractune_core.fleet.messages import PastTrial
from fractune_core.model_inputs import Inputs, as_shapes
from fractune_core.named_sizes import Sizes
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Kind, Status, TuningRecord

_LOG = "fractune.db"
_MOST_CORES = 4096


def pack(
    model: ModelSource,
    *,
    out: PathText | None = None,
    target: str = "",
    candidates: int = 48,
    cores: int = 1,
    only: str = "",
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    run_script: bool = False,
    seed: int = 0,
    private_key: str | bytes | None = None,
    force: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: LineProgress = True,
) -> dict[str, Any]:
    """Build `candidates` of each operator of a model for `target`, and write them to one file, without measuring.

    `fractune measure` measures the file on a machine that has no compiler. `target` is a TVM target, by default this
    host's CPU; `cores` are those of the largest CPU share. `only` names operators by parts of their names. The search
    learns from the log of `server`, or of the folder `state`, if one of them has measured these operators.
    `private_key` (PEM) signs the file. The file is `out` (default: `<model>.pack` in the current folder).

    Returns the pack's numbers. Raises BadModel, BadRequest, StateUnusable.
    """
    if not 1 <= candidates < MOST_CANDIDATES:
        raise BadRequest(f"--candidates is {candidates}; it must be from 1 to {MOST_CANDIDATES - 1}")
    if not 1 <= cores <= _MOST_CORES:
        raise BadRequest(f"--cores is {cores}; it must be from 1 to {_MOST_CORES}")
    if private_key is not None:
        from fractune_runtime.signatures import check_private_key

        check_private_key(private_key)
    with contextlib.ExitStack() as held:
        report = line_reporter(progress)
        path, found_shapes = held.enter_context(
            sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes, report=report)
        )
        written = Path(f"{path.stem}{SUFFIX}" if out is None else out).absolute()
        check_free(written, force=force)
        check_writable("--out", written)
        shapes = as_shapes(found_shapes or {})
        history = held.enter_context(_log_of(state, server))
        held.enter_context(children_find_us())
        found = make_pack(
            history,
            report,
            model=path,
            out=written,
            target=target,
            candidates=candidates,
            cores=cores,
            only=only,
            inputs=shapes,
            seed=seed,
        )
    if private_key is not None:
        from fractune_runtime.signatures import sign_sealed

        sign_sealed(Pack, written, private_key)
    return {**found, "signed": private_key is not None}


@contextlib.contextmanager
def _log_of(state: PathText | None, server: str | None) -> Iterator[Callable[[str, str], list[PastTrial]]]:
    """The earlier trials of an operator by workload hash and target key; none without a log."""
    has_log = named_server(state, server) or running_stack_of(state) or (state_folder(state) / _LOG).exists()
    if not has_log:
        yield lambda _workload_hash, _target_key: []
        return
    with session(RpcClient, state, server) as client:
        yield partial(_trials, client)


def _trials(client: RpcClient, workload_hash: str, target_key: str) -> list[PastTrial]:
    parts = client.export_records(pb.RecordFilter(operator=workload_hash, kind=Kind.TRIAL.value), with_workloads=False)
    records = [from_proto(TuningRecord, part.record) for part in parts if part.WhichOneof("part") == "record"]
    return past_trials([record for record in records if record.target_key == target_key])


def past_trials(records: Sequence[TuningRecord]) -> list[PastTrial]:
    """Trials at the shares of the device with the most records, of candidates that were measured at all of these."""
    by_device: dict[str, dict[tuple[str, str], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if record.status.built:
            secs = record.median_s if record.status is Status.OK else 0.0
            by_device[record.device.key][record.candidate_id, record.trace][record.share] = secs
    most: Mapping[tuple[str, str], Mapping[str, float]] = max(by_device.values(), key=len, default={})
    shares = {share for each in most.values() for share in each}
    return [PastTrial(name, trace, dict(each)) for (name, trace), each in most.items() if each.keys() == shares]
