"""Operators as TIR functions: the names of their blocks, and the traces that look blocks up by name."""
