"""One clear line out of the many that TVM, ONNX and PyTorch raise."""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """The first line of an error: it says what went wrong; the rest is where in C++."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300].rstrip(".")
