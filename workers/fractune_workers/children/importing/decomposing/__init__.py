"""One node of ONNX as simpler nodes."""
