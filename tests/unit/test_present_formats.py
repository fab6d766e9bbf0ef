"""Files of today's formats open. At the first release this becomes the test of an upgrade."""

from pathlib import Path

import numpy as np
import pytest

from fractune.features.log.log import read_jsonl
from fractune.features.tune.job_file import read_job
from fractune_core.codec.messages import from_proto
from fractune_core.records import TuningRecord
from fractune_runtime import cpu
from fractune_runtime.loading import open_bundle
from fractune_server.store.records.rows import RecordFilter
from tests.support.present_formats import BUNDLE, EXPORT, INPUT, JOB, RECORDS, WEIGHTS, opened_log, product_of
from tests.support.samples import WORKLOAD, WORKLOAD_TEXT


def test_a_log_a_bundle_and_a_job_file_of_the_present_formats_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened_log(tmp_path)
    assert sorted(store.log.all(RecordFilter()), key=lambda each: each.record_id) == RECORDS
    assert store.log.workload(WORKLOAD) == WORKLOAD_TEXT
    store.close()
    assert [from_proto(TuningRecord, part.record) for part in read_jsonl(EXPORT)] == RECORDS

    # The code needs x86-64-v2 alone; its times are those of the machine that made it.
    monkeypatch.setattr(cpu, "host_isa", lambda _: open_bundle(BUNDLE).manifest["device"]["isa"])
    np.testing.assert_allclose(product_of(BUNDLE), INPUT @ WEIGHTS, rtol=1e-5)

    ((model, *options),), hours = read_job(JOB)
    assert Path(model) == BUNDLE
    assert options == [
        "--shares",
        "cpu:1,cpu:2",
        "--trials",
        "256",
        "--out-dir",
        str(JOB.parent / "bundles"),
        "--lengths",
        "x:1=16,64",
    ]
    assert hours is not None
    assert (hours.begin, hours.end) == (22 * 60, 6 * 60)
