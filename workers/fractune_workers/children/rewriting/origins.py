"""From which node of a model's file each binding of its entry comes, kept in the module until it is lowered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm

_ORIGINS = "fractune.origins"


def with_origins(mod: tvm.IRModule, origins: Sequence[tuple[Any, str]]) -> tvm.IRModule:
    """The module with an attribute that says, of each binding of `main`, which node of the file it comes from.
    `origins`: the values of the nodes' outputs, in the order of the nodes, each with a text for its node.
    """
    texts: list[str] = []
    known = dict(origins)
    bindings = bindings_of(mod["main"])
    following = ""
    for binding in reversed(bindings):
        following = known.get(binding.var) or known.get(binding.value) or following
        texts.append(following)
    return mod.with_attr(_ORIGINS, texts[::-1])


def without_origins(mod: tvm.IRModule) -> tvm.IRModule:
    return mod.without_attr(_ORIGINS) if mod.attrs and _ORIGINS in mod.attrs else mod


def origins_of(mod: tvm.IRModule) -> list[str]:
    """By binding of `main`: the text for its node. Empty where nothing is known."""
    return [str(text) for text in mod.attrs[_ORIGINS]] if mod.attrs and _ORIGINS in mod.attrs else []


def bindings_of(function: Any) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]
