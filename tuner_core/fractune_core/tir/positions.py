"""Names by position for the blocks and buffers of a TIR function.

TVM names blocks and buffers after the computation and its variables: `lv13_sum`. The structural hash of a workload
ignores names. So two models share a workload with differently named blocks, and a trace, which looks blocks up by name,
would fit only one model. Names by position follow from the structure, so equal hashes have equal names. Steps of a
schedule name new blocks after blocks and buffers, so both get them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fractune_core.tir.kernel_names import KERNELS

ROOT = "root"
"""the outermost block: MetaSchedule looks it up by this name"""


@dataclass(frozen=True)
class Names:
    """Of one function's parts, in the order of their positions: `(the name that TVM gave, the name by position)`."""

    blocks: tuple[tuple[str, str], ...]
    """the root first, a block before those inside it"""
    buffers: tuple[tuple[str, str], ...]
    """arguments first"""


def named_by_position(mod: Any) -> Any:
    """The IRModule with names by position in every function that a schedule can be made for."""
    import tvm

    return tvm.IRModule({var: _renamed(function) for var, function in mod.functions.items()}, attrs=mod.attrs)


def names_of(function: Any) -> Names:
    """The names of a PrimFunc's blocks and buffers."""
    blocks = [str(block.name_hint) for block in _blocks(function)]
    buffers = [(str(buffer.name), f"buffer_at_{at}") for at, buffer in enumerate(_buffers(function))]
    return Names(tuple(zip(blocks, _block_names(blocks), strict=True)), tuple(buffers))


def _block_names(own: list[str]) -> list[str]:
    """The root and the blocks of a kernel keep their names."""
    kept = {name for kernel in KERNELS if kernel.issubset(own) for name in kernel}
    first = [name in kept and own.index(name) == at for at, name in enumerate(own)]
    named = [name if keeps else f"block_at_{at}" for at, (name, keeps) in enumerate(zip(own, first, strict=True))]
    return [ROOT, *named[1:]]


def _renamed(function: Any) -> Any:
    """The function; unchanged unless it is a sequence of blocks below a root: no lookup finds a block in others."""
    import tvm_ffi
    from tvm import ir, s_tir, tirx

    if not isinstance(function, tirx.PrimFunc) or not isinstance(function.body, s_tir.SBlockRealize):
        return function
    names = names_of(function)
    buffers = {old: tirx.Var(new, old.ty) for old, (_, new) in zip(_buffers(function), names.buffers, strict=True)}
    block_names = iter(names.blocks)

    def renamed_block(block: Any) -> Any:
        return s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            next(block_names)[1],
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    rules = ((ir.Var, lambda var: buffers.get(var, var)), (s_tir.SBlock, renamed_block))
    body = tvm_ffi.structural_map(function.body, rules, order="pre")
    params = [buffers.get(param, param) for param in function.params]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs)


def _blocks(function: Any) -> list[Any]:
    import tvm_ffi
    from tvm import s_tir

    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, found.append), order="pre")
    return found


def _buffers(function: Any) -> list[Any]:
    """Each once, where it is met first."""
    import tvm_ffi
    from tvm import ir, tirx

    found: dict[Any, None] = dict.fromkeys(filter(tirx.is_buffer_var, function.params))

    def note(var: Any) -> None:
        if tirx.is_buffer_var(var):
            found.setdefault(var)

    tvm_ffi.structural_walk(function.body, (ir.Var, note), order="pre")
    return list(found)
