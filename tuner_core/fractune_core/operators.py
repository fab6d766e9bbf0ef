"""What a reader of models may say of an operator. The reader checks it, and the recorder checks it again."""

from __future__ import annotations

import math

from fractune_core.errors import BadModel, shortened

MOST_NAME_CHARACTERS = 200
_MOST_TIMES = 2**31 - 1
_MOST_BYTES = 2**63 - 1
_SHOWN = 80


def check_operator(name: str, weight: int, flops: float, io_bytes: int) -> None:
    """Raises BadModel for an operator of a model whose name or numbers the log cannot hold."""
    if not (0 < len(name) <= MOST_NAME_CHARACTERS and name.isprintable()):
        raise BadModel(
            f"has an operator named {shortened(ascii(name), _SHOWN)}; name its function by 1 to "
            f"{MOST_NAME_CHARACTERS} printable characters"
        )
    _check_number(flops, math.inf, f"operator '{name}' takes", "operations")
    _check_number(io_bytes, _MOST_BYTES + 1, f"operator '{name}' reads and writes", "bytes")
    _check_number(weight, _MOST_TIMES + 1, f"operator '{name}' runs", "times")


def _check_number(number: float, beyond: float, does: str, what: str) -> None:
    if not 0 <= number < beyond:
        raise BadModel(f"{does} {number:g} {what}, which cannot be; export the model with smaller loops")
