"""TVM's runtime without its Python package, and the contents of its memory."""
