"""What both calls carry: packs of operators, a bundle, faulty candidates, and the packages of the host."""

import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.storm import FOLDER, build_all
from benchmarks.gpu.table.operations import OPERATIONS, Operation, save_model
from benchmarks.gpu.table_of_times import by_operator, fastest, records_in
from benchmarks.support.transformer import Encoder
from fractune.features.packs import pack
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.records import TuningRecord
from fractune_workers.child import Child

BUNDLE = "encoder.fractune"
SIZES = "encoder.json"
MOST_BYTES = 50 << 20
"""that are carried beside the tree"""
_TARGET, _ISA = "cuda:sm_90", "sm_90"
_COMPILE_S = 600.0


@dataclass(frozen=True)
class Content:
    """Of the packs; a rehearsal has small ones."""

    operations: Sequence[Operation]
    encoder: Encoder
    only: str
    """operators of the encoder"""
    candidates: int = 64
    second: int = 32
    """candidates of each operator in call B"""
    has_wheels: bool = True


_NAMED = ("llm_up_512", "resnet_conv3_3x3", "bert_inner", "resnet_conv4_3x3")
DAY = Content(
    tuple(each for each in OPERATIONS if each.name in _NAMED),
    Encoder(layers=1, width=768, heads=12, inner=3072, length=384, vocabulary=1000),
    "matmul",
)


def pack_all(carried: Path, content: Content = DAY) -> None:
    """Fill the folder for call A. Raises SystemExit if it is too large to be carried."""
    carried.mkdir(parents=True, exist_ok=True)
    (carried / "operations.json").write_text(json.dumps([asdict(each) for each in content.operations]))
    (carried / SIZES).write_text(json.dumps(asdict(content.encoder)))
    with tempfile.TemporaryDirectory(prefix="fractune-day-") as made:
        table = save_model(Path(made, "table.onnx"), content.operations, "float16")
        encoder = Path(made, "encoder.onnx")
        save_encoder(encoder, content.encoder)
        probe = save_model(Path(made, "probe.onnx"), [Operation("probe", "made up", (16, 32), (32, 16))], "float16")
        for model, only, candidates in (
            (probe, "matmul", 2),
            (table, "matmul,conv2d", content.candidates),
            (encoder, content.only, content.candidates),
        ):
            options: dict[str, Any] = {"target": _TARGET, "candidates": candidates, "only": only, "force": True}
            found = pack(model, out=Path(made, f"{model.stem}.pack"), state=Path(made, "state"), **options)
            print(f"{model.stem}: {found['built']} of {found['candidates']} candidates, {found['bytes']} bytes")
            _compress(Path(found["path"]), carried)
    build_all(carried / FOLDER, _TARGET)
    if content.has_wheels:
        from fractune.features.packs import carry_wheels

        carry_wheels(carried / "wheels", "cuda", python="3.12")
    check_size(carried)


def pack_second(carried: Path, given_back: Path, content: Content = DAY) -> None:
    """Fill the folder for call B, from the times of call A: a bundle, and candidates of a search that knows them. What
    only call A needs is removed.
    """
    with tempfile.TemporaryDirectory(prefix="fractune-day-") as made:
        with tarfile.open(given_back) as archive:
            archive.extractall(made, filter="data")
        encoder = Path(made, "encoder.onnx")
        save_encoder(encoder, content.encoder)
        bundle = Path(made, BUNDLE)
        make_bundle(encoder, records_in(Path(made, "encoder.times")), bundle)
        _compress(bundle, carried)
        table, state = save_model(Path(made, "table.onnx"), content.operations, "float16"), Path(made, "state")
        _log_import(Path(made, "table.times"), state)
        options: dict[str, Any] = {"candidates": content.second, "only": "matmul,conv2d", "seed": 1, "force": True}
        second = Path(made, "second.pack")
        pack(table, target=_TARGET, out=second, state=state, **options)
        _compress(second, carried)
    for name in ("probe", "table", "encoder"):  # of call A alone
        (carried / f"{name}.pack.xz").unlink(missing_ok=True)
    shutil.rmtree(carried / FOLDER, ignore_errors=True)
    check_size(carried)


def _compress(file: Path, carried: Path) -> None:
    """As `NAME.xz`: packs become a tenth."""
    (carried / f"{file.name}.xz").write_bytes(lzma.compress(file.read_bytes()))


def _log_import(times: Path, state: Path) -> None:
    command = [sys.executable, "-m", "fractune.cli", "log", "import", str(times), "--state", str(state)]
    subprocess.run(command, check=True)


def make_bundle(model: Path, records: Sequence[TuningRecord], out: Path) -> None:
    """A bundle with a variant for each share that was measured, of the fastest schedules there; not timed whole."""
    shares = {each.share: each.granted for each in records}
    traces = {
        share: {
            best.workload_hash: best.trace
            for own in by_operator(records).values()
            if (best := fastest(own, share)) is not None
        }
        for share in shares
    }
    manifest = {
        "model": {"name": model.name, "sha256": "0" * 64},
        "device": records[0].device.to_json(),
        "shares": {share: granted.to_json() for share, granted in shares.items()},
    }
    variants = [{"name": name, "traces": each} for name, each in {**traces, UNTUNED_VARIANT: {}}.items()]
    child = Child("fractune_workers.children.compiling.child")
    try:
        child.call("ingest", _COMPILE_S, path=str(model), inputs={}, target=_TARGET, isa=_ISA)
        child.call(
            "compile_bundle",
            _COMPILE_S,
            path=str(model),
            inputs={},
            target=_TARGET,
            out=str(out),
            variants=variants,
            manifest=manifest,
            records=[],
        )
    finally:
        child.stop()


def save_encoder(path: Path, sizes: Encoder) -> None:
    """In half precision; its weights follow from its sizes, so that the file need not be carried. They have two bits of
    a mantissa, so that a bundle of them compresses well.
    """
    import onnx

    from benchmarks.gpu.table.whole import halved

    sizes.save(path)
    model = halved(onnx.load(path))
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT16 and len(tensor.dims) > 1:
            bits = onnx.numpy_helper.to_array(tensor).view("uint16") & 0xFF00
            tensor.CopyFrom(onnx.numpy_helper.from_array(bits.view("float16"), tensor.name))
    onnx.save(model, path)


def sizes_of(carried: Path) -> Encoder:
    return replace(Encoder(), **json.loads((carried / SIZES).read_text()))


def check_size(carried: Path) -> None:
    """Raises SystemExit."""
    size = sum(each.stat().st_size for each in carried.rglob("*") if each.is_file())
    print(f"{carried}: {size / (1 << 20):.1f} MiB")
    if size >= MOST_BYTES:
        raise SystemExit(f"gpu_day: {carried} has {size} bytes, and below {MOST_BYTES} can be carried")
