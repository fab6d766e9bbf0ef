"""CUDA graphs: kernels of a model that are launched as one, after a first run that TVM captures.

TVM captures what it launches between the kernels that read an input and those that write an output. Weights do not
move, so they count as known.
"""

from __future__ import annotations

import tvm

OPTION = "relax.backend.use_cuda_graph"

_WANTED = "fractune.cuda_graphs"
_INPUTS = "num_input"
"""TVM's attribute of a function: its parameters behind that many are always the same"""
_CAPTURED = "cuda_graph_capture"
"""in the names of the functions that TVM makes of captured kernels"""


def with_graphs(mod: tvm.IRModule, weights: int) -> tvm.IRModule:
    """The module whose `main` takes `weights` weights after its inputs, marked for graphs."""
    main = mod["main"]
    marked = mod.clone()
    marked["main"] = main.with_attrs({_WANTED: 1, _INPUTS: len(main.params) - weights})
    return marked


def wants_graphs(mod: tvm.IRModule) -> bool:
    """Whether it is marked for graphs."""
    return _WANTED in (mod["main"].attrs or ())


def has_graphs(lowered: tvm.IRModule) -> bool:
    """Whether TVM found kernels to capture."""
    return any(_CAPTURED in str(var.name_hint) for var in lowered.functions)
