"""Where a job runs, a server or a stack of its own, and how it is followed to its end."""
