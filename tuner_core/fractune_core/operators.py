"""What a reader of models says of operators: of each its numbers, which the recorder checks again, or a refusal.

The refusal of one node of an ONNX file is a text for people, from which a client learns the node again.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fractune_core.errors import BadModel, shortened

MOST_NAME_CHARACTERS = 200
_MOST_TIMES = 2**31 - 1
_MOST_BYTES = 2**63 - 1
_WRONG_SHOWN = 80
UNKNOWN = "no kernel computes this operator"
_SHOWN = 200
"""characters of a name"""
_REFUSED = re.compile(r"cannot import node (with output )?'(.*?)' \(([^()' ]+)\): (.*)", re.DOTALL)
_ALSO = re.compile(r"\(also unsupported: ([^()]*)\)")


def check_operator(name: str, weight: int, flops: float, io_bytes: int, written_bytes: int) -> None:
    """Raises BadModel for an operator of a model whose name or numbers the log cannot hold."""
    if not (0 < len(name) <= MOST_NAME_CHARACTERS and name.isprintable()):
        raise BadModel(
            f"has an operator named {shortened(ascii(name), _WRONG_SHOWN)}; name its function by 1 to "
            f"{MOST_NAME_CHARACTERS} printable characters"
        )
    _check_number(flops, math.inf, f"operator '{name}' takes", "operations")
    _check_number(io_bytes, _MOST_BYTES + 1, f"operator '{name}' reads and writes", "bytes")
    _check_number(written_bytes, io_bytes + 1, f"operator '{name}' writes", "bytes")
    _check_number(weight, _MOST_TIMES + 1, f"operator '{name}' runs", "times")


def _check_number(number: float, beyond: float, does: str, what: str) -> None:
    if not 0 <= number < beyond:
        raise BadModel(f"{does} {number:g} {what}, which cannot be; export the model with smaller loops")


@dataclass(frozen=True)
class RefusedNode:
    name: str
    """of the node; empty if it has none"""
    output: str
    """its first, if it has no name"""
    operators: tuple[str, ...]
    """no node of these operators can be imported; empty if another node of the same operator may be"""

    def is_node(self, name: str, output: str, operator: str) -> bool:
        """Whether a node with this name, first output and operator is refused."""
        if operator in self.operators:
            return True
        return shortened(name, _SHOWN) == self.name if self.name else shortened(output, _SHOWN) == self.output


def node_text(name: str, output: str, operator: str) -> str:
    """The node by its name, or by its first output: exporters leave node names empty."""
    called = f"node '{shortened(name, _SHOWN)}'" if name else f"node with output '{shortened(output, _SHOWN)}'"
    return f"{called} ({operator})"


def refusal_text(opset: int, node: str, why: str) -> str:
    """`node` is its `node_text`."""
    return f"opset {opset}: cannot import {node}: {why}"


def unknown_text(others: Sequence[str]) -> str:
    """Why a node of an unknown operator is refused; `others` are more unknown operators of the model."""
    also = f" (also unsupported: {', '.join(others)})" if others else ""
    return f"{UNKNOWN}{also}; export without it"


def refused_node(message: str) -> RefusedNode | None:
    """The node that an error is about, None if it is about something else."""
    found = _REFUSED.search(message)
    if found is None:
        return None
    by_output, name, operator, why = found.groups()
    others: list[str] = []
    if why.startswith(UNKNOWN):
        also = _ALSO.search(why)
        others = [operator, *(also[1].split(", ") if also else [])]
    return RefusedNode("" if by_output else name, name if by_output else "", tuple(others))
