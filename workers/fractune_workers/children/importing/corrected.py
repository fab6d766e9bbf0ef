"""Operators that TVM's importer converts with another meaning than ONNX's, or only in part."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from fractune_workers.children.importing.onnx_node import Converter, OnnxNode


def _gelu(node: OnnxNode) -> relax.Expr:
    """Of any opset: TVM's converter reads `approximate` from opset 20 on only."""
    kind = node.attributes.get("approximate", b"none")
    if kind not in (b"none", b"tanh"):
        raise node.refused(f"approximate='{kind.decode(errors='replace')}' is neither 'none' nor 'tanh'")
    return (relax.op.nn.gelu_tanh if kind == b"tanh" else relax.op.nn.gelu)(node.input(0))


CORRECTED: Mapping[str, Converter] = {"Gelu": _gelu}
"""by ONNX's names"""
