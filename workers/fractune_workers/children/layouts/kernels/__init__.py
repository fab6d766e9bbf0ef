"""Kernels over tensors in blocks, and the implementations of a kernel that compete."""
