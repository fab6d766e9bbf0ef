"""TVM's runtime without its Python package, and what lies in its memory."""
