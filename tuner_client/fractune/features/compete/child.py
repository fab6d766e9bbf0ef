"""The process that times a bundle beside other runtimes; it is confined first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fractune_core.files.bundles import Bundle
from fractune_core.shares import Share


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share and its cores, separated by commas. Raises ShareUnavailable."""
    from fractune_workers.confinement.cpu import CpuConfinement

    share, cores = args
    confinement = CpuConfinement(Share.parse(share), [int(core) for core in cores.split(",")])
    confinement.enter()

    def compare(
        bundle: str, member: int | None, onnx: str, runtimes: list[str], repeats: int, *, exact: bool
    ) -> dict[str, Any]:
        from fractune.inference.comparing.beside_runtimes import time_beside_runtimes
        from fractune.inference.comparing.onnxruntime_model import is_quantized
        from fractune.inference.loading import model_of

        opened, path = Bundle(Path(bundle)), Path(onnx)
        one = opened if member is None else opened.members[member]
        model = model_of(one, share=share, runtimes=False)
        compared, found = time_beside_runtimes(
            model, path.read_bytes(), runtimes, repeats, quantized=is_quantized(path), exact=exact
        )
        confinement.verify()
        return {"compared": compared.to_json(), "runtimes": {name: each.to_json() for name, each in found.items()}}

    return {"compare": compare}
