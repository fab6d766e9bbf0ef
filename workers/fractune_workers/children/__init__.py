"""The code of child processes: the only place where TVM is imported."""
