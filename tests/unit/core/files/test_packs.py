"""A pack is read as it was written. One that was changed is refused before any of its code is loaded."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadBundle
from fractune_core.files.packs import ANCHOR, FORMAT, LOOP, Pack, PackedOperator, PackManifest, write_pack
from fractune_core.operators import joined_workloads, workload_hash
from fractune_core.records import UNTUNED, ArtifactItem, Status, candidate_id
from fractune_core.targets import target_key
from tests.support.client_samples import bundle_bytes

TARGET = json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
KEY = target_key(TARGET)
WORKLOAD = joined_workloads({"": {"any": 1}})
HASH = workload_hash(WORKLOAD)
MANIFEST = PackManifest(FORMAT, "m.onnx", TARGET, KEY, 1, "x86_64", ["avx2"], {"tvm": "0.27.0"})


def candidate(trace: str, status: Status = Status.OK, **changes: Any) -> ArtifactItem:
    return ArtifactItem(**{"candidate": candidate_id(HASH, KEY, trace), "trace": trace, "status": status} | changes)


OPERATOR = PackedOperator(
    "matmul",
    HASH,
    WORKLOAD,
    3,
    [["TENSOR", "float32", [4, 4]]] * 2,
    [candidate(UNTUNED), candidate("[1]"), candidate("[2]", Status.BUILD_FAILED, cause="no")],
)
CODES = {each.candidate: each.trace.encode() + b"code" for each in OPERATOR.candidates if each.status is Status.OK}


def packed(operator: PackedOperator = OPERATOR, manifest: PackManifest = MANIFEST, **codes: bytes) -> bytes:
    file = io.BytesIO()
    write_pack(file, manifest, [operator], codes or CODES, {ANCHOR: b"a", LOOP: b"l"})
    return file.getvalue()


def test_what_was_written_is_read() -> None:
    pack = Pack(packed())
    assert list(pack.operators()) == [OPERATOR]
    assert pack.code(candidate("[1]").candidate) == b"[1]code"
    assert (pack.host_kernel(ANCHOR), pack.host_kernel(LOOP)) == (b"a", b"l")
    pack.verify()


def test_a_signature_leaves_the_name_of_a_pack_as_it_is() -> None:
    file = io.BytesIO()
    Pack(packed()).copy_to(file, b"signature")
    assert Pack(file.getvalue()).digest == Pack(packed()).digest
    assert Pack(packed(manifest=replace(MANIFEST, model="other.onnx"))).digest != Pack(packed()).digest


def test_neither_a_bundle_nor_a_model_is_a_pack(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="its format is 3, and this fractune reads 'pack 1'; make the pack again"):
        Pack(bundle_bytes())
    (model := tmp_path / "m.onnx").write_bytes(b"a model")
    with pytest.raises(
        BadBundle, match=r"^m\.onnx: a model is not a pack; `fractune pack m\.onnx` makes a pack of it$"
    ):
        Pack(model)


@pytest.mark.parametrize(
    "changed",
    [
        replace(MANIFEST, operators=2),
        replace(MANIFEST, operators=0),
        replace(MANIFEST, target_key="{}"),
        replace(MANIFEST, target="llvm"),
        replace(MANIFEST, target=json.dumps({"kind": "c", "runtime": "/bin/sh"})),
        replace(MANIFEST, features={"avx2": 1}),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_manifest_that_contradicts_itself_is_refused(changed: PackManifest) -> None:
    with pytest.raises(BadBundle):
        Pack(packed(manifest=changed))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (replace(OPERATOR, workload=WORKLOAD + " "), "its text has another SHA-256"),
        (replace(OPERATOR, name="a\nb"), "printable"),
        (replace(OPERATOR, weight=-1), "which cannot be"),
        (replace(OPERATOR, candidates=OPERATOR.candidates[1:]), "its first candidate is not the untuned default"),
        (replace(OPERATOR, candidates=[candidate(UNTUNED)] * 2), "2 candidates, 1 of them different"),
        (replace(OPERATOR, candidates=[]), "0 candidates"),
        (replace(OPERATOR, candidates=[candidate(UNTUNED), candidate("[3]")]), "has no code"),
        (replace(OPERATOR, candidates=[candidate(UNTUNED), candidate("[1]", candidate="../x")]), "does not belong"),
        (replace(OPERATOR, candidates=[candidate(UNTUNED, build_secs=-1.0)]), "was built in -1.0 s"),
        (replace(OPERATOR, args_info=[]), "0 arguments"),
        (replace(OPERATOR, args_info=[["TENSOR", "float32", [1 << 40]]]), "elements"),
        (replace(OPERATOR, args_info=[["TENSOR", "float32", [-1]]]), "has the shape"),
        (replace(OPERATOR, args_info=["x"]), "is not a tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_operator_that_cannot_be_is_refused(changed: PackedOperator, reason: str) -> None:
    with pytest.raises(BadBundle, match=reason):
        list(Pack(packed(changed)).operators())


def test_a_changed_code_is_not_loaded() -> None:
    data = packed()
    at = data.index(b"[1]code")
    pack = Pack(data[:at] + b"[1]evil" + data[at + 7 :])
    with pytest.raises(BadBundle):
        pack.code(candidate("[1]").candidate)


def test_a_file_that_is_replaced_between_its_check_and_its_use_is_not_run(tmp_path: Path) -> None:
    """Whether another file takes its name, or its bytes change in place."""
    path, data = tmp_path / "m.pack", packed()
    at = data.index(b"[1]code")
    evil = data[:at] + b"[1]evil" + data[at + 7 :]
    path.write_bytes(data)
    checked = Pack(path)
    (tmp_path / "evil").write_bytes(evil)
    (tmp_path / "evil").replace(path)
    assert checked.code(candidate("[1]").candidate) == b"[1]code"
    checked.close()
    path.write_bytes(data)
    checked = Pack(path)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"[1]evil")
    found = b""
    with contextlib.suppress(BadBundle):
        found = checked.code(candidate("[1]").candidate)
    assert found in {b"", b"[1]code"}
    checked.close()


def test_a_pack_for_a_cpu_has_the_kernels_that_its_host_needs() -> None:
    file = io.BytesIO()
    write_pack(file, MANIFEST, [OPERATOR], CODES, {ANCHOR: b"a"})
    with pytest.raises(BadBundle, match=f"'{LOOP}' is missing"):
        Pack(file.getvalue())
