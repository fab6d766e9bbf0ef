"""The child that checks bundles: the whole model's outputs against another implementation of ONNX.

It reads a stranger's file by ONNX Runtime, and runs a stranger's code, so it is started in a sandbox.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fractune_core.errors import BadModel, BadRequest, FractuneError, first_line
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import Checked
from fractune_core.files.input_arrays import LABEL, InputFile
from fractune_core.files.model_files import walk
from fractune_workers.children.checking.comparing import Comparison, DiffersError
from fractune_workers.children.checking.references import Array
from fractune_workers.children.importing.model_file import APART_FROM_BYTES, is_onnx
from fractune_workers.children.importing.onnx_graph import parsed
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.scratch_tensors import LEAST_BYTES
from fractune_workers.children.tvm_api.target import missing_features, parse_target

_ANY_CORES = 1


def check(
    path: str, inputs: dict[str, list[int]], bundle: str, given: str = "", member: int | None = None
) -> dict[str, Any]:
    """Compare the `bundle`, or this member of a joined one, with the model file at `path`, on inputs of these shapes
    and on the `given` file of arrays.

    Returns `checked`, a Checked as JSON, or `differs`, a text. Raises BadRequest for given arrays that do not fit.
    """
    folder = Path(path).parent if Path(path).stat().st_size >= APART_FROM_BYTES else None
    try:
        data, whole = _outline(Path(path)) if folder else Path(path).read_bytes(), Bundle(Path(bundle))
    except BadModel as error:
        return {"checked": Checked(reason=str(error)).to_json()}
    found = whole if member is None else whole.members[member]
    arrays = _given_arrays(Path(given), found.manifest["inputs"]) if given else None
    reason = _why_not(data, found)
    if reason:
        return {"checked": Checked(reason=reason).to_json()}
    model = parsed(data)
    if model is None:
        return {"checked": Checked(reason="the model file cannot be read").to_json()}
    try:
        return {"checked": Comparison(data, model, inputs, found, folder).compared(arrays).to_json()}
    except DiffersError as error:
        return {"differs": f"{Path(path).name}: {error}"}
    except BadRequest:
        raise
    except FractuneError as error:
        return {"checked": Checked(reason=first_line(error)).to_json()}


def _outline(path: Path) -> bytes:
    """A large model without its weights: it refers to their places in the file. Raises BadModel for another format."""
    with walk(path) as found:
        if found is None or found.interface().in_another_file:
            raise BadModel("cannot be read as one file")
        data, places = found.apart(LEAST_BYTES)
    model = onnx.ModelProto.FromString(data)
    for tensor in model.graph.initializer:
        if tensor.name in places:
            begin, size = places[tensor.name]
            for key, value in {"location": path.name, "offset": begin, "length": size}.items():
                tensor.external_data.add(key=key, value=str(value))
    return model.SerializeToString()


def _given_arrays(path: Path, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The arrays of the caller's file by name, which are exactly the `inputs` of a manifest. Raises BadRequest."""
    with contextlib.closing(InputFile(path, LABEL)) as file:
        file.check(inputs)
        return {
            name: np.frombuffer(file.data(name), each.dtype).reshape(each.shape) for name, each in file.arrays.items()
        }


def _why_not(data: bytes, bundle: Bundle) -> str:
    """Why nothing can be compared here, empty if it can be."""
    if "stages" in bundle.written:
        return "each of its parts was checked when it was tuned"
    if not is_onnx(data):
        return "only ONNX files are compared"
    if "slots" in bundle.manifest:
        return "it is of a fused model"
    target = parse_target(bundle.manifest["target"], _ANY_CORES)
    if target.kind.name != "llvm":
        return "the bundle is for a GPU, and the comparing process has none"
    missing = missing_features(target)
    return f"this machine lacks what the bundle needs: {', '.join(missing)}" if missing else ""


def open_child(_args: Sequence[str]) -> dict[str, Callable[..., Any]]:
    stay_off_gpus()
    return {"check": check}
