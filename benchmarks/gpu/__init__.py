"""Two calls on a lent GPU (docs/gpu.md); scripts/gpu_day runs them."""
