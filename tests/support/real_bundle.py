"""Bundles of small models, compiled for real but not tuned, for tests of inference."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fractune_core.files.fused import write_fused
from fractune_core.shares import GrantedShare
from tests.support.denormals import compile_denormals
from tests.support.encoders import write_encoder
from tests.support.parts import CDIST, write_middle
from tests.support.processes.cli_process import write_model

ENCODER, MEAN_OF_ALL = "encoder", "mean_of_all"
ENCODER_SHAPES = {ENCODER: [(1, 8), (1, 16), (2, 16)], MEAN_OF_ALL: [(1, 8), (1, 16)]}
"""batch and length of each bundle, by model"""


def compile_small(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A small model and a bundle of it with the variants cpu:1, cpu:2 and untuned; `changes` go to its manifest."""
    model = write_model(folder / "small.onnx")
    return model, compile_model(model, folder / "small.fractune", **changes)


def compile_fused(folder: Path) -> tuple[list[Path], Path]:
    """Two variants of the small model, and a bundle in which they have the first two of three slots."""
    models = [write_model(folder / f"variant{seed}.onnx", seed=seed) for seed in (1, 2)]
    fused = folder / "variants.fused"
    with fused.open("wb") as file:
        write_fused(file, [model.stem for model in models], models, 3)
    return models, compile_model(fused, folder / "variants.fractune")


def compile_model(
    model: Path,
    out: Path,
    target: str = "",
    tuned: Sequence[str] = ("cpu:1", "cpu:2"),
    inputs: Mapping[str, list[int]] | None = None,
    traces: Mapping[str, str] | None = None,
    **changes: Any,
) -> Path:
    """A bundle with the variants `tuned`, which have the `traces` but are not tuned, and untuned; `inputs` are shapes
    of open inputs.
    """
    from fractune_workers.children.compiling.child import compile_bundle
    from fractune_workers.children.tvm_api.target import host_device

    shares = {f"cpu:{n}": GrantedShare(f"cpu:{n}", n, 2, "core", 1 << 30, reserved=False) for n in (1, 2)}
    manifest = {
        "model": {"name": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest()},
        "device": host_device().to_json(),
        "shares": {share: granted.to_json() for share, granted in shares.items()},
        **changes,
    }
    variants = [{"name": name, "traces": dict(traces or {})} for name in tuned]
    variants.append({"name": "untuned", "traces": {}})
    compile_bundle(str(model), dict(inputs or {}), target, variants, manifest, [], str(out))
    return out


def compile_encoders(folder: Path) -> None:
    """An encoder, and bundles of it for three shapes; another one that padding changes, and bundles for two."""
    for name, shapes in ENCODER_SHAPES.items():
        model = write_encoder(folder / f"{name}.onnx", mean_of_all=name == MEAN_OF_ALL)
        for batch, length in shapes:
            sizes = [batch, length]
            out = folder / f"{name}-{batch}x{length}.fractune"
            compile_model(model, out, tuned=["cpu:1"], inputs={"ids": sizes, "mask": sizes})


def compile_parts(folder: Path) -> Path:
    """A model with an operator that cannot be imported, and a bundle of it in parts."""
    from fractune.features.parts.parts import cut_model, join_parts

    model, cut = write_middle(folder / "middle.onnx"), folder / "parts"
    cut.mkdir()
    parts = cut_model(model, {}, [CDIST], cut)
    bundles = [compile_model(own, folder / f"{own.stem}.fractune") for own in parts.own]
    join_parts(model, parts, bundles, folder / "middle.fractune")
    return folder / "middle.fractune"


if __name__ == "__main__":
    makers: dict[str, Callable[[Path], object]] = {
        "small": compile_small,
        "fused": compile_fused,
        "encoders": compile_encoders,
        "parts": compile_parts,
        "denormals": compile_denormals,
    }
    makers[sys.argv[2]](Path(sys.argv[1]))
