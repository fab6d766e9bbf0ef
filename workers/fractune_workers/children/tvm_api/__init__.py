"""TVM for all children: targets, artifacts, intrinsics, and the processor on which kernels run."""
