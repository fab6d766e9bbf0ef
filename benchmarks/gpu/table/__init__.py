"""The first table: fractune's kernels beside those of NVIDIA's libraries, at three shares of the GPU."""
