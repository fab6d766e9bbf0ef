"""Where a job runs, on a server or a new stack, and how it is followed to its end."""
