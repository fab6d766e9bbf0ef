"""A bundle of before the names of docs/decisions/0021-names-in-storage.md loads and runs."""

from __future__ import annotations

import numpy as np
import pytest

import fractune
from fractune_core.errors import BadBundle
from fractune_core.files.bundles import Bundle
from fractune_core.records import Kind, TuningRecord
from tests.support.first_names import BUNDLE


def test_its_records_are_read() -> None:
    bundle = Bundle(BUNDLE)
    assert {data["kind"] for data in bundle.records()} == {"final"}
    records = [TuningRecord.from_json(data) for data in bundle.records()]
    assert {record.kind for record in records} == {Kind.VALIDATION}
    named = {op["by_variant"]["cpu:1"]["record"] for op in bundle.manifest["operators"] if op["by_variant"]}
    assert named - {None} <= {record.record_id for record in records}


def test_it_runs_and_every_variant_gives_the_same() -> None:
    try:
        model = fractune.load(BUNDLE)
    except BadBundle as error:
        pytest.skip(str(error))  # it is machine code for one generation of processors
    inputs = model.random_inputs(seed=1)
    untuned = model.run(inputs, "untuned")[0]
    for variant in ("cpu:1", "cpu:2"):
        np.testing.assert_allclose(model.run(inputs, variant)[0], untuned, rtol=1e-3)
