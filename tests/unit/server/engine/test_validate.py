"""What people see of an operator once its finalists were timed."""

from __future__ import annotations

from fractune_core.jobs import JobSpec
from fractune_core.records import UNTUNED
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.validate import _copy_times
from fractune_server.store.stored_job import StoredJob, StoredOperator
from tests.support.samples import DEVICE, TARGET_KEY, divided, granted


def test_the_time_of_the_winner_is_not_the_one_that_made_it_win() -> None:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    stored = StoredJob("j", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm", target_key=TARGET_KEY)
    operator = StoredOperator("f" * 16, "conv2d", 1, selected=True)
    validations = [
        divided(UNTUNED, 1, 4.0, 4.2),
        divided("lucky", 1, 1.0, 1.5),
        divided("other", 1, 1.2, 1.3),
        divided("of before", 1, 0.9, 0.9, measured_at=1.0, record_id="r0"),
        divided("of before", 1, 1.9, 1.9, measured_at=2.0, record_id="r1"),
    ]
    _copy_times(ActiveJob(stored, [operator]), operator, validations)
    assert (operator.best_s, operator.untuned_s) == ({"cpu:1": 1.5}, {"cpu:1": 4.2})
