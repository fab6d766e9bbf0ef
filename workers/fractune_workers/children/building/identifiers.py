"""Names of a kernel's variables as C's identifiers: code for a GPU is generated as text.

TVM replaces the dots of a name alone. Models have other names too, such as `gpu_0/data_0` for an input.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tvm
from tvm.tirx import PrimFunc

_IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
"""Dots are allowed: TVM replaces them, and names threads with them."""
_FOREIGN = re.compile(r"\W", re.ASCII)


def with_identifiers(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with all names of variables in its TIR functions as identifiers. TVM keeps them apart."""
    named = {var: _named(each) if isinstance(each, PrimFunc) else each for var, each in mod.functions.items()}
    return tvm.IRModule(named, attrs=mod.attrs)


def _named(function: Any) -> Any:
    graph = json.loads(tvm.ir.save_json(function))
    nodes: list[dict[str, Any]] = graph["nodes"]
    for node in [each for each in nodes if each["type"] == "ir.Var"]:
        name = nodes[node["data"]["name"]]["data"]
        if not _IDENTIFIER.fullmatch(name):
            # A text of its own: the graph holds equal texts once, and another may not be a name.
            node["data"]["name"] = len(nodes)
            nodes.append({"type": "ffi.String", "data": "_" + _FOREIGN.sub("_", name)})
            function = None
    return function or tvm.ir.load_json(json.dumps(graph))
