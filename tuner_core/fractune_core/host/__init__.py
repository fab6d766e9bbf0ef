"""Facts and limits of the host, from the kernel."""
