"""GPUs by the NVIDIA driver and its management library; nothing here is imported before it is needed."""
