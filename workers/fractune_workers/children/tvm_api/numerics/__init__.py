"""Numerics of an operator, as its blocks show them: half precision, quantization, whole numbers."""
