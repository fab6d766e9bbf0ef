"""One file a command: what a server did, its jobs, what they cost, and the log of what they measured."""
