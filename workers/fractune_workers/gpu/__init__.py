"""What the NVIDIA driver and its management library tell of a GPU; nothing here is imported before it is needed."""
