"""What this machine has: shares and their proof, CUDA, packages."""
