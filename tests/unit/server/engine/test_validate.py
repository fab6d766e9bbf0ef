"""What people see of an operator once its finalists were timed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fractune_core.jobs import JobSpec
from fractune_core.records import UNTUNED, Status
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.validate import ValidatePhase, _copy_times
from fractune_server.store.jobs import StoredJob, StoredOperator
from fractune_server.store.records.log import LogKey
from tests.support.samples import DEVICE, TARGET_KEY, WORKLOAD, divided, granted


def test_the_time_of_the_winner_is_not_the_one_that_made_it_win() -> None:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    stored = StoredJob("j", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm", target_key=TARGET_KEY)
    operator = StoredOperator(WORKLOAD, "conv2d", 1, selected=True)
    validations = [
        divided(UNTUNED, 1, 4.0, 4.2),
        divided("lucky", 1, 1.0, 1.5),
        divided("other", 1, 1.2, 1.3),
        divided("of before", 1, 0.9, 0.9, measured_at=1.0, record_id="r0"),
        divided("of before", 1, 1.9, 1.9, measured_at=2.0, record_id="r1"),
    ]
    _copy_times(ActiveJob(stored, [operator]), operator, validations)
    assert (operator.best_s, operator.untuned_s) == ({"cpu:1": 1.5}, {"cpu:1": 4.2})


def test_repeats_are_as_long_as_the_share_needs_at_which_the_operator_matters_most() -> None:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1", "cpu:2"))
    tuned_at = {"cpu:1": granted(1), "cpu:2": granted(2)}
    stored = StoredJob("j", spec, 1.0, DEVICE, tuned_at, "llvm", target_key=TARGET_KEY)
    secs = {"heavy": (100.0, 100.0), "light": (0.1, 0.1), "at one share": (0.1, 2.0), "heavy at one": (0.1, 20.0)}
    operators = [StoredOperator(name, name, 1, selected=True) for name in secs]
    job, sent = ActiveJob(stored, operators), list[Any]()

    def best_trials(key: LogKey, share: str, _count: int) -> list[Any]:
        median_s = secs[key.workload_hash][share == granted(2).key]
        return [SimpleNamespace(candidate_id="c", trace="t", median_s=median_s, status=Status.OK)]

    log = SimpleNamespace(
        validated_of=lambda names, _pool, _tenant: {name: SimpleNamespace(records=[]) for name in names},
        best_trials=best_trials,
    )
    context: Any = SimpleNamespace(store=SimpleNamespace(log=log))
    rounds: Any = SimpleNamespace(
        validations=list, start=lambda _live, _queue, works: sent.extend(works), goes_first=lambda _job: False
    )
    ValidatePhase(context, rounds).advance(job)
    lengths = {work.round.operator.workload_hash: work.round.repeat_ms for work in sent}
    assert lengths == {"heavy": None, "light": 0.5, "at one share": 2.0, "heavy at one": None}
