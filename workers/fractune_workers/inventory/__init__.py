"""The inventory of this machine: shares and their proof, CUDA, packages."""
