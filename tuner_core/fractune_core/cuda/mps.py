"""NVIDIA's MPS: its control program, and the packages that have it."""

from __future__ import annotations

PROGRAM = "nvidia-cuda-mps-control"
PACKAGES = "nvidia-compute-utils-580 or nvidia-compute-utils-580-server on Ubuntu, nvidia-cuda-mps on Debian"
"""packages with the program; Ubuntu's are named after the driver's release"""
