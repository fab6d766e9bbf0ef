"""Bundles of older versions load and run; one was written before docs/decisions/0021-names-in-storage.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fractune
from fractune_core.errors import BadBundle
from fractune_core.files.bundles import Bundle
from fractune_core.records import Kind, TuningRecord
from tests.support.first_names import BUNDLE, SCHEMA_0013


def test_its_records_are_read() -> None:
    bundle = Bundle(BUNDLE)
    assert {data["kind"] for data in bundle.records()} == {"final"}
    records = [TuningRecord.from_json(data) for data in bundle.records()]
    assert {record.kind for record in records} == {Kind.VALIDATION}
    named = {op["by_variant"]["cpu:1"]["record"] for op in bundle.manifest["operators"] if op["by_variant"]}
    assert named - {None} <= {record.record_id for record in records}


@pytest.mark.parametrize(("bundle", "shares"), [(BUNDLE, ["cpu:1", "cpu:2"]), (SCHEMA_0013 / BUNDLE.name, ["cpu:1"])])
def test_it_runs_and_every_variant_gives_the_same(bundle: Path, shares: list[str]) -> None:
    try:
        model = fractune.load(bundle)
    except BadBundle as error:
        if not str(error).endswith("; tune the model here"):
            raise
        pytest.skip(str(error))  # it is machine code for one generation of processors
    inputs = model.random_inputs(seed=1)
    untuned = model.run(inputs, "untuned")[0]
    for variant in shares:
        np.testing.assert_allclose(model.run(inputs, variant)[0], untuned, rtol=1e-3)
