"""What runs inside child processes: the only place where TVM is imported."""
