"""Bundles checked against another implementation of ONNX."""
