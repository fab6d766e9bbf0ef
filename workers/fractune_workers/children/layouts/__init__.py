"""The layouts of a model's tensors, the kernels for these layouts, and the passes before and after them."""
