"""A whole ONNX file becomes a Relax module."""
