"""Names of the environment variables of CUDA and of MPS."""

from __future__ import annotations

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""the GPUs or MIG instances that CUDA shows a process"""
TOOLKIT_HOMES = ("CUDA_HOME", "CUDA_PATH")
"""folders of a toolkit, the first one that is set wins"""

MPS_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
"""where clients reach the control daemon"""
MPS_LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
MPS_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""how much of the SMs a client may use"""
MPS_PARTITION = "CUDA_MPS_SM_PARTITION"
"""the static partition that a client belongs to"""
MPS_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""device memory that a client may use, by device"""
MPS_PREFIX = "CUDA_MPS_"
