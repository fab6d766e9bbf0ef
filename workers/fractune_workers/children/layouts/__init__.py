"""In which layout each tensor of a model lies, and the kernels for these layouts."""
