"""A `torch.export` program (.pt2) -> Relax, without unpickling anything.

`torch.export.load` trusts its file: it unpickles sample inputs, custom objects and some weights, evaluates symbolic
expressions as Python, and resolves any function of `torch` by name. The archive itself is plain: JSON for the graph,
raw bytes for the weights. So the archive is rewritten in memory with only the parts that a program of fixed shapes
needs. Everything else is left out or refused, and `torch.export.load` reads the rewritten archive.
"""

import io
import json
import re
import zipfile
from typing import Any

import tvm

from fractune_core.codec.plain_json import read_json
from fractune_core.errors import BadModel, first_line
from fractune_core.files.archives import Archive
from fractune_workers.children.importing.limits import payload_size
from fractune_workers.children.tvm_api.keep_out import hushed, let_torch_in

_GRAPH = "models/model.json"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
_HEADERS = ("archive_format", "archive_version", "byteorder", ".data/version")
_OPERATOR = re.compile(r"torch\.ops\.aten\.[a-z0-9_]+\.[A-Za-z0-9_]+|_operator\.getitem")
_PLAIN_TENSOR = re.compile(r"(weight|tensor)_[0-9]+")
_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict")
_SYMBOLIC = frozenset({"as_expr", "as_sym_int", "as_sym_ints", "as_sym_float", "as_sym_bool"})
_CODE = frozenset({"as_graph", "as_custom_obj", "as_operator"})
_ELEMENT_BITS = {1: 8, 2: 8, 3: 16, 4: 32, 5: 64, 6: 16, 7: 32, 8: 64, 12: 8, 13: 16}
"""By PyTorch's number of a type: whole numbers of 8 to 64 bits, floats of 16 to 64, truth values, bfloat16"""
_EXPORT = "export it with torch.export.save(torch.export.export(model, inputs), path)"


def load_torch(data: bytes, shapes: Any) -> tvm.IRModule:
    """The exported program in `data` as a Relax module. Raises BadModel, also without PyTorch, and BadArchive."""
    screened = screen(data)
    if shapes:
        raise BadModel("a torch.export program has its shapes already; leave out --input")
    let_torch_in()
    try:
        import torch
        from tvm.relax.frontend.torch import from_exported_program
    except ImportError as error:
        raise BadModel("is a torch.export program, and PyTorch is missing; pip install 'fractune[torch]'") from error
    try:
        with hushed():
            program = torch.export.load(io.BytesIO(screened))
            return from_exported_program(program, run_ep_decomposition=True)
    except Exception as error:
        raise BadModel(f"TVM cannot import the program: {first_line(error)}") from error


def screen(data: bytes) -> bytes:
    """The archive with its graph and plain weights alone. Raises BadModel for a program that needs more, and
    BadArchive.
    """
    with Archive(data) as archive:
        root = archive.names[0].partition("/")[0] if archive.names else ""
        entries = {name.removeprefix(f"{root}/"): archive.read(name) for name in archive.names}
    if _GRAPH not in entries:
        raise BadModel(f"is an archive, but not a torch.export program; {_EXPORT}")
    kept = {name: entries[name] for name in _HEADERS if name in entries}
    kept[_GRAPH] = json.dumps(_plain_graph(_json(entries[_GRAPH]))).encode()
    kept[_SAMPLE_INPUTS] = b""
    for config in _CONFIGS:
        kept |= _plain_tensors(entries, config)
    return _zip(root, kept)


def _json(data: bytes) -> Any:
    try:
        return read_json(data)
    except ValueError as error:
        raise BadModel(f"holds a graph that is not JSON; {_EXPORT}") from error


def _plain_graph(graph: Any) -> Any:
    """The graph without stack traces, guards and other text that PyTorch would look up or run."""
    if not isinstance(graph, dict):
        raise BadModel(f"holds no graph of a program; {_EXPORT}")
    if graph.get("range_constraints"):
        raise BadModel("has dynamic dimensions; export it without dynamic_shapes")
    graph["guards_code"] = []
    _screen(graph)
    return graph


def _screen(value: Any) -> None:
    if isinstance(value, list):
        for part in value:
            _screen(part)
    if not isinstance(value, dict):
        return
    if _SYMBOLIC & value.keys():
        raise BadModel("has dynamic dimensions; export it without dynamic_shapes")
    if _CODE & value.keys():
        raise BadModel("holds control flow or custom objects; export a model of tensor operators alone")
    _screen_node(value)
    for part in value.values():
        _screen(part)


def _screen_node(value: dict[str, Any]) -> None:
    target = value.get("target")
    if isinstance(target, str) and "outputs" in value:
        value["metadata"] = {}
        if not _OPERATOR.fullmatch(target):
            raise BadModel(f"calls '{target}', which is not an operator of ATen; export a model without it")
    for name in ("in_spec", "out_spec"):
        if isinstance(value.get(name), str):
            _screen_spec(_json(value[name].encode()))


def _screen_spec(spec: Any) -> None:
    """Check how inputs and outputs nest: plain containers only, because others name modules to import."""
    if isinstance(spec, dict):
        if spec.get("type") not in _CONTAINERS:
            raise BadModel(f"takes or gives a {spec.get('type')}; export a model with tensors, lists and dicts")
        spec = spec.get("children_spec", [])
    if isinstance(spec, list):
        for part in spec:
            _screen_spec(part)


def _plain_tensors(entries: dict[str, bytes], config: str) -> dict[str, bytes]:
    if config not in entries:
        raise BadModel(f"has no {config}: it is of an older PyTorch; export it again with 2.9 or later")
    kept = {config: entries[config]}
    for name, payload in _payloads(entries[config]):
        path = str(payload.get("path_name"))
        if payload.get("use_pickle") is not False or not _PLAIN_TENSOR.fullmatch(path):
            raise BadModel(f"holds '{name}' as a pickle, which could run code; export plain tensors")
        entry = f"{config.rpartition('/')[0]}/{path}"
        if entry not in entries:
            raise BadModel(f"lacks the contents of '{name}'; export it again")
        _check_view(payload.get("tensor_meta"), len(entries[entry]), f"weight '{name}'")
        kept[entry] = entries[entry]
    return kept


def _check_view(meta: Any, payload_bytes: int, what: str) -> None:
    """Raises BadModel unless a tensor lies within its payload, which others may share."""
    try:
        bits = _ELEMENT_BITS[meta["dtype"]]
        offset, *layout = (each["as_int"] for each in [meta["storage_offset"], *meta["sizes"], *meta["strides"]])
        on_cpu = meta["device"]["type"] == "cpu"
    except (KeyError, TypeError) as error:
        raise BadModel(f"{what} has no known type, or no fixed shape; {_EXPORT}") from error
    if not on_cpu:
        raise BadModel(f"{what} is not in the memory of a CPU; move the model there, and {_EXPORT}")
    rank = len(meta["sizes"])
    sizes, strides = layout[:rank], layout[rank:]
    if not (len(strides) == rank and all(type(each) is int and each >= 0 for each in (offset, *layout))):
        raise BadModel(f"{what} has a shape that no tensor can have; {_EXPORT}")
    payload_size(sizes, bits, what)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if 0 not in sizes and (last + 1) * bits // 8 > payload_bytes:
        raise BadModel(f"{what}, of shape {sizes}, needs more than its {payload_bytes:,} bytes in the file")


def _payloads(config: bytes) -> list[tuple[str, dict[str, Any]]]:
    read = _json(config)
    payloads = read.get("config") if isinstance(read, dict) else None
    if not isinstance(payloads, dict) or not all(isinstance(value, dict) for value in payloads.values()):
        raise BadModel(f"lists its weights in no known way; {_EXPORT}")
    return list(payloads.items())


def _zip(root: str, entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, contents in entries.items():
            archive.writestr(f"{root}/{name}", contents)
    return buffer.getvalue()
