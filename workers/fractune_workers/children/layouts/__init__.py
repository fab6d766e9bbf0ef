"""The layouts of a model's tensors, and the kernels for these layouts."""
