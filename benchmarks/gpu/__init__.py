"""The suite for a machine with an NVIDIA GPU (docs/gpu.md); scripts/gpu_suite runs it."""
