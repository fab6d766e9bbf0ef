"""The place of a job, a server or a new stack, and the views that follow it to its end."""
