"""A TVM IRModule from a file, as JSON or as TVMScript text.

An IRModule is a program that will be compiled and run: its loops may write past their buffers, as in any
native code, and the measuring process is there to die of it. But it may not call out of the module by name,
nor carry code of another language.
"""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import tvm

from fractune_core.errors import BadModel
from fractune_workers.children.importing.script_guard import guarded, metadata_json
from fractune_workers.children.tvm_api.error_line import first_line

_CALLS_OUT = ("extern", "packed", "py_func", "ffi_kernel", "func_call", "call_builtin_with_ctx", "asm")
"""Parts of the names of TVM's operators that call a function by its name, or hold foreign code"""
_LIBRARY = "tvm.contrib.sort."
"""What TVM's own lowering calls by name"""
_FOREIGN_CODE = ("pragma_import_c", "pragma_import_llvm", "external_mods")
_HINT = "export the model without it"

Node = dict[str, Any]


def load_json(text: str) -> tvm.IRModule:
    """The IRModule that `tvm.ir.save_json` wrote. Raises BadModel."""
    _refuse_foreign_code(_graph(text))
    try:
        mod = tvm.ir.load_json(text)
    except Exception as error:
        raise BadModel(f"is no IRModule as JSON: {first_line(error)}; write it with tvm.ir.save_json") from error
    return _checked(mod)


def load_script(text: str) -> tvm.IRModule:
    """The IRModule that `IRModule.script(show_meta=True)` printed. Raises BadModel."""
    source = guarded(text)
    for metadata in metadata_json(text):
        _refuse_foreign_code(_graph(metadata))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            mod = tvm.script.from_source(source)
    except Exception as error:
        raise BadModel(f"is no TVMScript module: {first_line(error)}") from error
    mod = _checked(mod)
    _refuse_foreign_code(_graph(tvm.ir.save_json(mod)))
    return mod


def _checked(mod: Any) -> tvm.IRModule:
    if not isinstance(mod, tvm.IRModule):
        raise BadModel(f"holds a {type(mod).__name__}, not an IRModule; save the whole module")
    return mod


def _graph(text: str) -> list[Node]:
    """The objects in TVM's JSON: one flat list, in which nothing can hide."""
    try:
        nodes = json.loads(text)["nodes"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadModel("is no IRModule as JSON; write it with tvm.ir.save_json") from error
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise BadModel("is no IRModule as JSON; write it with tvm.ir.save_json")
    return nodes


def _refuse_foreign_code(nodes: list[Node]) -> None:
    for node in nodes:
        kind, data = node.get("type"), node.get("data")
        if kind in {"relax.expr.ExternFunc", "ir.EnvFunc"}:
            raise BadModel(f"calls the external function {_name(nodes, data)}; {_HINT}")
        if kind == "ffi.String" and isinstance(data, str) and data.startswith(_FOREIGN_CODE):
            raise BadModel(f"carries foreign code under '{data}'; {_HINT}")
        if kind == "ir.Call" and isinstance(data, dict):
            _check_call(nodes, data)


def _check_call(nodes: list[Node], call: Node) -> None:
    operator = _at(nodes, call.get("op"))
    name = operator.get("data")
    if operator.get("type") != "ir.Op" or not isinstance(name, str) or not any(p in name for p in _CALLS_OUT):
        return
    callee = _callee(nodes, call)
    if not callee.startswith(_LIBRARY):
        raise BadModel(f"calls '{callee}' through {name}; {_HINT}")


def _callee(nodes: list[Node], call: Node) -> str:
    """The first argument of the call, where that is a string."""
    arguments = _at(nodes, call.get("args")).get("data")
    first = _at(nodes, arguments[0] if isinstance(arguments, list) and arguments else None).get("data")
    text = _at(nodes, first.get("value") if isinstance(first, dict) else None).get("data")
    return text if isinstance(text, str) else "?"


def _name(nodes: list[Node], data: Any) -> str:
    index = data.get("global_symbol") if isinstance(data, dict) else None
    return f"'{_at(nodes, index).get('data', data)}'"


def _at(nodes: list[Node], index: Any) -> Node:
    return nodes[index] if isinstance(index, int) and 0 <= index < len(nodes) else {}
