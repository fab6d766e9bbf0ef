"""What a bundle's manifest says of a model: its inputs and outputs (names, types, shapes), and its metadata."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax

from fractune_core.codec.plain_json import is_storable, read_json
from fractune_core.files.archives import Archive, BadArchive
from fractune_core.files.manifests import is_dim_name
from fractune_core.files.model_files import read_interface
from fractune_core.model_inputs import constants_in, shapes_in
from fractune_workers.children.importing import onnx_graph
from fractune_workers.children.layouts.last_token import gives_last_token

_ZIP = b"PK\x03\x04"
_GRAPH = "/models/model.json"
_MOST_CHARACTERS = 1 << 18
"""of metadata, as JSON; the alphabets of models that read text have some ten thousands"""

Names = tuple[list[str], list[str]]
"""of the inputs and of the outputs"""


def of_file(data: bytes, constants: Collection[str] = ()) -> tuple[Names, dict[str, Any]]:
    """From the bytes of a model file: the names of inputs and outputs, where TVM does not keep them, and what an ONNX
    file says about itself. Empty for other formats. `constants` are no longer inputs.
    """
    if data.startswith(_ZIP):
        return _torch_names(data), {}
    model = onnx_graph.parsed(data)
    if model is None:
        return ([], []), {}
    # TVM turns names into identifiers, and so changes `input.1`.
    inputs = [value.name for value in onnx_graph.inputs_of(model.graph) if value.name not in constants]
    return (inputs, [value.name for value in model.graph.output]), _metadata(model)


def describe_dims(path: Path, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`dims` of a manifest with these inputs: their axes as the ONNX file has them. Absent for other formats."""
    found = read_interface(path)
    held = {each.name: each.shape for each in found.inputs} if found else {}
    dims = {
        each["name"]: [dim if isinstance(dim, int) or is_dim_name(dim) else None for dim in shape]
        for each in inputs
        if (shape := held.get(each["name"])) is not None and len(shape) == len(each["shape"])
    }
    return {"dims": dims} if dims else {}


def _metadata(model: onnx.ModelProto) -> dict[str, Any]:
    """By ONNX Runtime's names, without what is empty or no manifest can hold."""
    texts = {
        "producer_name": model.producer_name,
        "domain": model.domain,
        "description": model.doc_string,
        "graph_name": model.graph.name,
        "graph_description": model.graph.doc_string,
    }
    props = {each.key: each.value for each in model.metadata_props}
    custom = {key: value for key, value in props.items() if is_storable(key) and is_storable(value)}
    found: dict[str, Any] = {name: text for name, text in texts.items() if text and is_storable(text)}
    if model.HasField("model_version"):
        found["version"] = model.model_version
    if custom:
        found["custom_metadata_map"] = custom
    return found if len(json.dumps(found)) <= _MOST_CHARACTERS else {}


def _torch_names(data: bytes) -> Names:
    """The names of outputs alone: the keys of a program that returns a dict of tensors, else the names of
    `torch.export`.
    """
    try:
        with Archive(data) as archive:
            (entry,) = (name for name in archive.names if name.endswith(_GRAPH))
            program = read_json(archive.read(entry))["graph_module"]
        specs = [spec for spec in program["signature"]["output_specs"] if "user_output" in spec]
        names = [str(spec["user_output"]["arg"]["as_tensor"]["name"]) for spec in specs]
        form = read_json(program["module_call_graph"][0]["signature"]["out_spec"])[1]
        is_dict = form["type"] == "builtins.dict" and len(form["children_spec"]) == len(names)
        return [], [str(key) for key in read_json(form["context"])] if is_dict else names
    except (BadArchive, ValueError, TypeError, LookupError):  # no form of a program that we know
        return [], []


def describe_constants(inputs: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """`constants` and `constant_shapes` of the inputs of a job, each absent without one."""
    constants, shapes = constants_in(inputs), shapes_in(inputs)
    given = {name: list(shapes[name]) for name in constants if name in shapes}
    return {key: each for key, each in (("constants", constants), ("constant_shapes", given)) if each}


def describe_main(mod: tvm.IRModule, weights: int, names: Names) -> dict[str, list[dict[str, Any]]]:
    """`inputs` and `outputs` of the module's `main`. Its last `weights` parameters are not inputs.

    The names are the file's where their number fits; else TVM's for inputs, and `output0` and so on for outputs.
    """
    main = mod["main"]
    params = list(main.params)[: len(main.params) - weights]
    outputs = list(_tensors(main.ret_ty))
    outputs = outputs[:-1] if gives_last_token(mod) else outputs
    input_names = _fitting(names[0], [str(param.name) for param in params])
    output_names = _fitting(names[1], [f"output{index}" for index in range(len(outputs))])
    return {
        "inputs": [_describe(name, param.ty) for name, param in zip(input_names, params, strict=True)],
        "outputs": [_describe(name, output) for name, output in zip(output_names, outputs, strict=True)],
    }


def _fitting(names: Sequence[str], others: Sequence[str]) -> Sequence[str]:
    is_fitting = len(names) == len(others) == len(set(names)) and all(map(is_storable, names))
    return names if is_fitting else others


def _tensors(kind: Any) -> list[Any]:
    """The types of the tensors in a (nested) tuple of them, in order."""
    if isinstance(kind, relax.TupleType):
        return [tensor for field in kind.fields for tensor in _tensors(field)]
    return [kind]


def _describe(name: str, kind: Any) -> dict[str, Any]:
    """A dimension that depends on the data is null."""
    dims = [None] * int(kind.ndim) if kind.shape is None else list(kind.shape)
    fixed = [int(dim) if isinstance(dim, int | tvm.tirx.IntImm) else None for dim in dims]
    return {"name": name, "dtype": str(kind.dtype), "shape": fixed}
