"""A server, or a stack of our own, and its jobs: found, asked, followed to the end."""
