"""What the kernel tells of the machine that a process runs on."""
