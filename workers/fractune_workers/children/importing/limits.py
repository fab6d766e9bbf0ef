"""Limits of a model on its way in, checked before anything is expanded.

A file of a kilobyte can describe a billion nodes (functions that call each other twice) or a tensor of a terabyte
(`Expand`). No step inlines, evaluates or lowers a part before its size is known to be within these limits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fractune_core.errors import BadModel

MOST_NODES = 30_000
"""Of a model once its functions are inlined, and of operators in Relax"""
MOST_TENSOR_BYTES = 2**31
"""Of one tensor, as of a model file"""
MOST_DIMENSIONS = 32
"""Of one tensor: NumPy's own limit was this for most of its life"""
_COMPUTED_BYTES = 2**29
_KEPT_BYTES = 2**27
"""ONNX's own test model of ResNet-50 computes all of its weights, 98 MiB"""
_INFERENCE_BYTES = 2**31
_PER_FILE_BYTE = 16
"""Quantized weights grow to four times their size in the file, in a chain of several constants. And a model of many
weights is large, and may have large values."""
_KEPT_PER_FILE_BYTE = 8
"""Weights of four bits become numbers of 32"""


@dataclass(frozen=True)
class Limits:
    """Of one model; the variants in a fused model's file share them evenly."""

    file_bytes: int
    """of the whole file"""
    variants: int = 1

    @property
    def nodes(self) -> int:
        return MOST_NODES // self.variants

    @property
    def computed_bytes(self) -> int:
        """Of all constants that are computed from constants alone."""
        return (_COMPUTED_BYTES + _PER_FILE_BYTE * self.file_bytes) // self.variants

    @property
    def kept_bytes(self) -> int:
        """Of the weights of one variant, and of what is computed from constants and kept: they are in its bundle."""
        grown = _KEPT_BYTES + (_KEPT_PER_FILE_BYTE - 1) * self.file_bytes
        return self.file_bytes + grown // self.variants

    @property
    def inference_bytes(self) -> int:
        """Of all that one inference of one variant holds at once."""
        return _INFERENCE_BYTES + _PER_FILE_BYTE * self.file_bytes

    def check_nodes(self, count: int, what: str) -> None:
        """Raises BadModel when `what` has too many nodes."""
        if count > self.nodes:
            shared = f" for each of {self.variants} variants" if self.variants > 1 else ""
            raise BadModel(f"{what} has {count:,} nodes, and {self.nodes:,} is the limit{shared}; tune a part of it")

    def check_kept(self, size: int, what: str) -> None:
        """Raises BadModel when the bundle would be too large for such a file."""
        if size > self.kept_bytes:
            raise BadModel(
                f"{what} makes {size:,} bytes of constants that a bundle would hold, and {self.kept_bytes:,} is the "
                f"limit for a file of {self.file_bytes:,} bytes; compute fewer constants from constants"
            )

    def check_inference(self, size: int, what: str) -> None:
        """Raises BadModel when an inference needs too much memory. A measurer needs the same memory, and twice the
        arguments of one operator.
        """
        if size > self.inference_bytes:
            raise BadModel(
                f"{what} {size:,} bytes at once, and {self.inference_bytes:,} is the limit for a file of "
                f"{self.file_bytes:,} bytes; use smaller shapes"
            )


def check_tensor(shape: list[int], element_bytes: int, what: str) -> int:
    """Bytes of a tensor of that shape. Raises BadModel when it is too large."""
    if len(shape) > MOST_DIMENSIONS:
        raise BadModel(f"{what} is a tensor of {len(shape)} dimensions, and {MOST_DIMENSIONS} is the limit")
    if min(shape, default=0) < 0:
        raise BadModel(f"{what} is a tensor of shape {shape}, with a negative dimension; export the model again")
    size = element_bytes * math.prod(shape)
    if size > MOST_TENSOR_BYTES:
        raise BadModel(
            f"{what} is a tensor of shape {shape}, {size:,} bytes, and {MOST_TENSOR_BYTES:,} is the limit; "
            "use smaller shapes"
        )
    return size


# TVM and PyTorch allocate a tensor by its header, and read what the payload has. What a short payload leaves is memory
# of this process: the last model's weights. So every tensor is checked here before another library sees it.


def check_payload(shape: Sequence[int], element_bits: int, payload_bytes: int, what: str) -> None:
    """Raises BadModel unless a tensor has a possible shape, and exactly the bytes that it needs."""
    needed = payload_size(shape, element_bits, what)
    if payload_bytes != needed:
        raise BadModel(
            f"{what} is a tensor of shape {list(shape)}, which needs {needed:,} bytes, and the file has "
            f"{payload_bytes:,} for it; export the model again"
        )


def payload_size(shape: Sequence[int], element_bits: int, what: str) -> int:
    """Bytes of a tensor. Raises BadModel when it is too large, or would be without its empty dimensions: libraries
    multiply sizes in 64 bits.
    """
    check_tensor([size or 1 for size in shape], math.ceil(element_bits / 8), what)
    return math.ceil(math.prod(shape) * element_bits / 8)


@dataclass
class ComputedConstants:
    """The bytes of the constants that a model computes; `Limits.computed_bytes` is the most."""

    limits: Limits
    taken_bytes: int = 0

    def take(self, size: int, what: str) -> None:
        """Count a constant before it is computed. Raises BadModel when all of them together are too large."""
        self.taken_bytes += size
        if self.taken_bytes > self.limits.computed_bytes:
            raise BadModel(
                f"{what} is computed from constants alone, which makes {self.taken_bytes:,} bytes of such constants; "
                f"{self.limits.computed_bytes:,} is the limit for a file of {self.limits.file_bytes:,} bytes"
            )
