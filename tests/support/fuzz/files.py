"""Files that come from elsewhere: imported logs, bundles, plan files."""

import hashlib
import io
import json
import math
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fractune.cli.commands.models.run import array_names
from fractune.features.log.log import csv_row, read_jsonl
from fractune.features.plan.plan_file import read_plan
from fractune.features.plan.table import bundle_rows
from fractune.models.external_data import write_one_file
from fractune.models.source import check_given
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.files.buckets import Buckets, Padding, input_shapes, open_axes
from fractune_core.files.bundles import WEIGHTS, Bundle
from fractune_core.files.compared import MODEL, Compared, Runtime, Timed
from fractune_core.files.joined import join_bundles, join_stages
from fractune_core.files.model_files import read_interface, read_outline
from fractune_core.files.sealed import MANIFEST, write_archive
from fractune_core.files.staged import Stages, Step, Tensor, part_entry
from fractune_core.operators import check_workload
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.planning.devices import cpu_type
from fractune_core.records import TuningRecord
from fractune_core.targets import arch_of
from fractune_runtime.choosing import choose_variant
from fractune_runtime.tvm_runtime.drawing import random_inputs
from fractune_runtime.tvm_runtime.tensors import numpy_dtype, specs_of
from fractune_server.store.records.rows import check_record
from tests.support.client_samples import DEVICE, bundle_bytes, plan_file
from tests.support.fuzz.mutations import Mutator
from tests.support.fuzz.texts import file_target
from tests.support.samples import DISTURBANCE, WORKLOAD, WORKLOAD_TEXT, divided

RECORD = divided("[]", 2, 1e-3, 1.1e-3, record_id="r1", disturbance=DISTURBANCE).to_json()
_WORKLOAD = {"workload_hash": WORKLOAD, "json": WORKLOAD_TEXT}
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
    line = {"workload": _WORKLOAD} if mutator.random.random() < 0.1 else {"record": RECORD}
    if mutator.random.random() < 0.3:
        return mutator.blob(json.dumps(line).encode())
    return json.dumps(mutator.value(line)).encode()


def _read_log(path: Path) -> None:
    """As a client sends it and the server takes it in."""
    for part in read_jsonl(path):
        if part.WhichOneof("part") == "workload":
            check_workload(part.workload.workload_hash, part.workload.json)
            continue
        record = from_proto(TuningRecord, part.record)
        check_record(record)
        assert to_proto(record, pb.Record) is not None
        csv_row(record)


def _manifest_of(valid: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    bundle = Bundle(valid)
    return bundle.written, {name: bundle.read(name) for name in bundle.manifest["sha256"]}


_BUNDLE = bundle_bytes(
    variants=[
        {"name": "untuned", "objects": ["lib0.o"], "weights": [0]},
        {"name": "cpu:1", "objects": ["lib0.o"], "weights": [0]},
    ],
    inputs=[{"name": "a", "dtype": "float32", "shape": [1, 3]}, {"name": "b", "dtype": "bfloat16", "shape": []}],
    outputs=[{"name": "y", "dtype": "int64", "shape": [None, 2]}],
    weights=[
        {"dtype": "int8", "shape": [3, 5], "offset": 0, "size": 15},
        {"dtype": "float32", "shape": [2], "offset": 64, "size": 8},
    ],
    weight_bytes=bytes(72),
    measured={"cpu:1": {"untuned": 0.5, "cpu:1": 0.25}},
    choosing={"cpu:1": {"untuned": 0.4, "cpu:1": 0.3}},
)
_MANIFEST, _ENTRIES = _manifest_of(_BUNDLE)


def _joined_bundle() -> bytes:
    """Two shapes of one model, the larger of which another runtime serves at a share."""
    bundles = [
        Bundle(
            bundle_bytes(
                inputs=[{"name": "ids", "dtype": "int64", "shape": [1, length]}],
                outputs=[{"name": "y", "dtype": "float32", "shape": [1, length]}],
                weights=[{"dtype": "int8", "shape": [3, 5], "offset": 0, "size": 15}],
                weight_bytes=bytes(15),
                timed={"cpu:1": 1e-3},
            )
        )
        for length in (8, 16)
    ]
    buckets = Buckets(open_axes([bundle.manifest for bundle in bundles]), {"ids": 1}, Padding(proved=True, reason="ok"))
    joined, compared = io.BytesIO(), io.BytesIO()
    join_bundles(joined, bundles, buckets)
    whole = Bundle(joined.getvalue())
    won = Compared({"fractune": Timed(2e-3, 3e-3), "openvino": Timed(1e-3, 1e-3, (2.0, 1.9, 2.1), (1.0, 0.9, 1.1))})
    small, large = whole.written["members"]
    whole.copy_to(
        compared,
        extra={MODEL: b"onnx"},
        members=[small, {**large, "compared": {"cpu:1": won.to_json()}}],
        runtimes={"openvino": Runtime("2026.4.1", {}).to_json()},
    )
    return compared.getvalue()


def _staged_bundle() -> bytes:
    """A model in two parts, of which ONNX Runtime runs the second."""
    tensors = [{"name": name, "dtype": "float32", "shape": [1, 8]} for name in "xa"]
    own = Bundle(bundle_bytes(inputs=tensors[:1], outputs=tensors[1:]))
    x, a, y = (Tensor(name, "float32", [1, size]) for name, size in (("x", 8), ("a", 8), ("y", None)))
    part = Step([a], [y], part=part_entry(0), operators={"NonZero": 2})
    file = io.BytesIO()
    model = {"name": "m.onnx", "sha256": "0" * 64}
    runtime = Runtime("1.31.1", {"session.intra_op.allow_spinning": "0"})
    join_stages(file, [own], Stages([x], [y], [Step([x], [a], 0), part]), {part_entry(0): b"onnx"}, model, runtime)
    return file.getvalue()


_JOINED = _joined_bundle()
_STAGED = _staged_bundle()
_SEVERAL = [(whole, *_manifest_of(whole)) for whole in (_JOINED, _STAGED)]
_BOMB_BYTES = 1 << 21
_SMALL_BYTES = 1 << 16


def _bundle(mutator: Mutator) -> bytes:
    """A changed file, a zip file that claims what it is not, or a sound one around a changed manifest."""
    draw = mutator.random.random()
    if draw < 0.3:
        return mutator.blob(_BUNDLE)
    if draw < 0.4:
        return _odd_zip(mutator)
    return _around_changed_manifest(mutator, _MANIFEST, _ENTRIES)


def _joined(mutator: Mutator) -> bytes:
    """As `_bundle`, of one for several shapes that was compared with another runtime, or of one in parts."""
    whole, manifest, entries = mutator.random.choice(_SEVERAL)
    if mutator.random.random() < 0.3:
        return mutator.blob(whole)
    return _around_changed_manifest(mutator, manifest, entries)


def _around_changed_manifest(mutator: Mutator, manifest: dict[str, Any], entries: dict[str, bytes]) -> bytes:
    text = json.dumps(mutator.value(manifest)).encode()
    file = io.BytesIO()
    write_archive(file, mutator.blob(text) if mutator.random.random() < 0.2 else text, entries)
    return file.getvalue()


def _odd_zip(mutator: Mutator) -> bytes:
    """Entries that are compressed, one of them to much less than it has, or that are there twice."""
    with zipfile.ZipFile(io.BytesIO(_BUNDLE)) as archive:
        entries, comment = {name: archive.read(name) for name in archive.namelist()}, archive.comment
    names = list(entries)
    twice = mutator.random.choice(names)
    grown = mutator.random.choice(names)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name in [*names, twice] if mutator.random.random() < 0.5 else names:
            payload = entries[name] + (b" " * _BOMB_BYTES if name == grown else b"")
            archive.writestr(zipfile.ZipInfo(name), payload, mutator.random.choice((0, zipfile.ZIP_DEFLATED)))
        manifest = entries[MANIFEST] + (b" " * _BOMB_BYTES if grown == MANIFEST else b"")
        archive.comment = f"fractune manifest sha256 {hashlib.sha256(manifest).hexdigest()}".encode()
        assert len(archive.comment) == len(comment)
    return file.getvalue()


def _read_bundle(path: Path) -> None:
    """As `fractune.load` and `fractune plan` do, up to the code, and never more bytes than the file has."""
    bundle = Bundle(path)
    try:
        bundle.verify()
        bundle.records()
        for member in bundle.members:
            _read_weights(member, member.variants[0]["name"])
            choose_variant(member, 1)
        for compared in bundle.manifest.get("compared", {}).values():
            assert Compared.from_json(compared).winners <= {"onnxruntime", "openvino"}
        if "buckets" in bundle.manifest:
            held = Buckets.from_json(bundle.manifest["buckets"])
            assert all(held.axes.sizes(input_shapes(member.manifest)) for member in bundle.members[1:])
        entries = [bundle.manifest_bytes, *map(bundle.read, bundle.manifest["sha256"])]
        assert sum(map(len, entries)) <= path.stat().st_size, "an entry that is compressed"
        for mechanism in ("cpu", "mps", "full"):
            bundle.measured(mechanism)
            for units in (1, 3):
                assert choose_variant(bundle, units, mechanism=mechanism).variant
        for variant in bundle.variants:
            bundle.objects(variant["name"])
            _read_weights(bundle, variant["name"])
        _make_tensors(bundle)
        arch_of(bundle.manifest["target"])
    finally:
        bundle.close()
    assert bundle_rows(path, cpu_type(DEVICE.units), 4)


def _read_weights(bundle: Bundle, variant: str) -> None:
    described = [bundle.manifest["weights"][number] for number in set(bundle.weights_of(variant))]
    assert sum(each["size"] for each in described) <= bundle.size(WEIGHTS), "weights that lie over each other"
    rooms = [(each["offset"], memoryview(bytearray(each["size"]))) for each in described]
    bundle.read_parts(WEIGHTS, rooms)


def _make_tensors(bundle: Bundle) -> None:
    inputs, outputs = (specs_of(bundle.manifest[field]) for field in ("inputs", "outputs"))
    for spec in (*inputs, *outputs):
        elements = math.prod(dim or 1 for dim in spec.shape)
        assert elements < 1 << 31, "a tensor that no memory holds"
        assert numpy_dtype(spec.dtype).itemsize <= 8
    small = [spec for spec in inputs if math.prod(dim or 1 for dim in spec.shape) <= _SMALL_BYTES]
    arrays = random_inputs(small)
    assert {name: array.shape for name, array in arrays.items()} == {spec.name: spec.shape for spec in small}
    names = array_names(outputs)
    assert len(set(names)) == len(names) == len(outputs)


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


_ONNX = onnx.helper.make_model(
    onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 8])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.zeros((8, 200), np.float32), "w")],
    )
).SerializeToString()


def _apart(model: bytes) -> bytes:
    """With a weight in another file, which is not there."""
    made = onnx.ModelProto.FromString(model)
    weight = made.graph.initializer.add(name="v", dims=[8], data_type=onnx.TensorProto.FLOAT)
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "v.data", "offset": "4096", "length": "32"}.items():
        weight.external_data.add(key=key, value=value)
    return made.SerializeToString()


def _onnx_file(mutator: Mutator) -> bytes:
    return mutator.blob(mutator.random.choice([_ONNX, _apart(_ONNX)]))


def _read_onnx_file(path: Path) -> None:
    """As `fractune inspect` and `fractune tune` read it."""
    interface = read_interface(path)
    if interface is not None:
        assert all(each.shape_text.isprintable() for each in (*interface.inputs, *interface.outputs))
        read_outline(path)
        check_given(path, {"x": [1, 8]})
        target = path.with_suffix(".one")
        target.unlink(missing_ok=True)
        write_one_file(path, target)


TARGETS = (
    file_target("imported logs", _log_line, _read_log, weight=12),
    file_target("bundles", _bundle, _read_bundle, weight=8),
    file_target("joined bundles", _joined, _read_bundle, weight=6),
    file_target("ONNX files of a client", _onnx_file, _read_onnx_file, weight=6),
    file_target("plan files", _plan, _read_plan, weight=6),
)
