"""What the importer does with an operator of ONNX, by its name alone."""

from collections.abc import Callable, Sequence
from typing import Any

from onnx import defs, helper

from fractune_workers.children.importing.onnx_models.decompositions import DECOMPOSITIONS
from fractune_workers.children.importing.onnx_models.onnx_fold import UNROLLED
from fractune_workers.children.importing.onnx_models.onnx_importer import is_known


def how(name: str) -> str:
    """Whether an operator is native, decomposed or refused. Other domains stand before the name, with a dot."""
    if name in DECOMPOSITIONS or name in UNROLLED:
        return "decomposed"
    domain, _, operator = name.rpartition(".")
    if name == "If" or is_known(helper.make_node(operator, [], [], domain=domain)):
        return "native"
    schema: Any = defs.get_schema(name) if "." not in name and defs.has(name) else None
    if schema is not None and (schema.has_function or schema.has_context_dependent_function):
        return "decomposed"
    return "refused"


def how_all(names: Sequence[str]) -> list[str]:
    return [how(name) for name in names]


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    return {"how": how_all}
