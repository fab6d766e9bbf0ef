"""CUDA itself: its driver, green contexts, kernels in PTX, compilers. What administers a GPU is in `gpu`."""
