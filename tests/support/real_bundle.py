"""Bundles of small models, compiled for real but not tuned, for tests of inference."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fractune_core.files.fused import write_fused
from fractune_core.shares import GrantedShare
from tests.support.processes.cli_process import write_model


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
    model: Path, out: Path, target: str = "", tuned: Sequence[str] = ("cpu:1", "cpu:2"), **changes: Any
) -> Path:
    """A bundle with the variants `tuned`, none of which is, and untuned."""
    from fractune_workers.children.compiling.child import compile_bundle
    from fractune_workers.children.tvm_api.target import host_device

    shares = {f"cpu:{n}": GrantedShare(f"cpu:{n}", n, 2, "core", 1 << 30, reserved=False) for n in (1, 2)}
    manifest = {
        "model": {"name": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest()},
        "device": host_device().to_json(),
        "shares": {share: granted.to_json() for share, granted in shares.items()},
        **changes,
    }
    variants = [{"name": name, "traces": {}} for name in (*tuned, "untuned")]
    compile_bundle(str(model), {}, target, variants, manifest, [], str(out))
    return out


if __name__ == "__main__":
    if sys.argv[2] == "small":
        compile_small(Path(sys.argv[1]))
    else:
        compile_fused(Path(sys.argv[1]))
