"""One node of ONNX in Relax."""
