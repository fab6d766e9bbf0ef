"""The process that times a bundle beside other runtimes; it is confined first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import Compared, Runtime
from fractune_core.shares import Share

if TYPE_CHECKING:
    from fractune.inference.comparing.beside_runtimes import Contenders


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
        from fractune.inference.comparing.typical_inputs import highest_integers, typical_inputs
        from fractune.inference.loading import model_of

        opened = Bundle(Path(bundle))
        model = model_of(opened if member is None else opened.members[member], share=share, runtimes=False)
        inputs = typical_inputs(model.inputs, highest_integers(model.inputs, model.run))
        compared, found = time_beside_runtimes(model, [inputs], _file(onnx, repeats, exact=exact), runtimes)
        confinement.verify()
        return {"compared": compared.to_json(), "runtimes": _as_json(found)}

    def compare_between(
        bundle: str, member: int, onnx: str, compared: Any, repeats: int, *, exact: bool
    ) -> dict[str, Any]:
        from fractune.inference.bucketed_model import BucketedModel
        from fractune.inference.padding.between_shapes import time_between_shapes

        model = BucketedModel(Bundle(Path(bundle)), share=share, runtimes=False)
        at_shape = Compared.from_json(compared)
        between, found = time_between_shapes(model, member, _file(onnx, repeats, exact=exact), at_shape)
        confinement.verify()
        return {"between": [each.to_json() for each in between], "runtimes": _as_json(found)}

    return {"compare": compare, "compare_between": compare_between}


def _file(onnx: str, repeats: int, *, exact: bool) -> Contenders:
    from fractune.inference.comparing.beside_runtimes import Contenders
    from fractune.inference.comparing.onnxruntime_model import is_quantized

    path = Path(onnx)
    return Contenders(path.read_bytes(), is_quantized(path), exact, repeats)


def _as_json(found: Mapping[str, Runtime]) -> dict[str, Any]:
    return {name: each.to_json() for name, each in found.items()}
