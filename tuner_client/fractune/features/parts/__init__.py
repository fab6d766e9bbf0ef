"""A model that the importer refuses in part: what it can import is tuned, and ONNX Runtime runs the rest."""
