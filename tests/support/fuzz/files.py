"""Files that come from elsewhere: imported logs, bundles, plan files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from fractune.log_io.log_files import csv_row, read_jsonl
from fractune.planning.plan_file import read_plan
from fractune_core.convert import record_from_proto, record_to_proto
from fractune_core.files.bundles import Bundle, write_archive
from fractune_server.store.records.record_check import check_record, check_workload
from tests.support.client_samples import bundle_bytes, plan_file
from tests.support.fuzz.mutations import Mutator
from tests.support.fuzz.target import Target
from tests.support.fuzz.texts import file_target
from tests.support.samples import DISTURBANCE, divided

RECORD = divided("[]", 2, 1e-3, 1.1e-3, record_id="r1", disturbance=DISTURBANCE).to_json()
WORKLOAD = {"workload_hash": "f" * 16, "json": "[1, 2]"}
_PLAN = plan_file('model = "m.onnx"\ninputs = {data = [1, 3]}').encode()
_PLAN_WORDS = (
    b"1e400",
    b"inf",
    b"nan",
    b"-1",
    b"0",
    b"[]",
    b"{}",
    b"true",
    b"1979-05-27",
    b'"\\u0000"',
    b"9" * 30,
    b"9" * 5000,
)


def _log_line(mutator: Mutator) -> bytes:
    line = {"workload": WORKLOAD} if mutator.random.random() < 0.1 else {"record": RECORD}
    if mutator.random.random() < 0.3:
        return mutator.blob(json.dumps(line).encode())
    return json.dumps(mutator.value(line)).encode()


def _read_log(path: Path) -> None:
    """As a client sends it and the server takes it in."""
    for part in read_jsonl(path):
        if part.WhichOneof("part") == "workload":
            check_workload(part.workload)
            continue
        record = record_from_proto(part.record)
        check_record(record)
        assert record_to_proto(record) is not None
        csv_row(record)


def _manifest_of(valid: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    bundle = Bundle(valid)
    return bundle.manifest, {name: bundle.read(name) for name in bundle.manifest["sha256"]}


_BUNDLE = bundle_bytes(variants=[{"name": "untuned", "objects": ["lib0.o"]}])
_MANIFEST, _ENTRIES = _manifest_of(_BUNDLE)


def _bundle(mutator: Mutator) -> bytes:
    """A changed file, or a sound one around a changed manifest."""
    if mutator.random.random() < 0.4:
        return mutator.blob(_BUNDLE)
    fuller = {**_MANIFEST, "measured": {"cpu:1": {"untuned": 0.5}}, "choosing": {"cpu:1": {"untuned": 0.4}}}
    text = json.dumps(mutator.value(fuller)).encode()
    file = io.BytesIO()
    write_archive(file, mutator.blob(text) if mutator.random.random() < 0.2 else text, _ENTRIES)
    return file.getvalue()


def _read_bundle(payload: bytes) -> None:
    bundle = Bundle(payload)
    try:
        bundle.verify()
        bundle.records()
        for mechanism in ("cpu", "mps", "full"):
            bundle.measured(mechanism)
            bundle.choosing(mechanism)
        for variant in bundle.variants:
            bundle.weights_of(variant["name"])
            bundle.objects(variant["name"])
    finally:
        bundle.close()


def _plan(mutator: Mutator) -> bytes:
    made = mutator.blob(_PLAN)
    lines = made.splitlines(keepends=True)
    at = mutator.random.randrange(len(lines)) if lines else 0
    if lines and mutator.random.random() < 0.6 and b"=" in lines[at]:
        lines[at] = lines[at].partition(b"=")[0] + b"= " + mutator.random.choice(_PLAN_WORDS) + b"\n"
    return b"".join(lines)


def _read_plan(path: Path) -> None:
    plan = read_plan(path)
    if not plan.logged:
        plan.request.check()


TARGETS = (
    file_target("imported logs", _log_line, _read_log, weight=12),
    Target("bundles", _bundle, _read_bundle, weight=8),
    file_target("plan files", _plan, _read_plan, weight=6),
)
