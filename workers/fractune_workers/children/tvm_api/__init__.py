"""What all children need of TVM: targets, artifacts, intrinsics, and the processor that kernels run on."""
