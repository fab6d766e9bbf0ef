"""The one-machine stack: Redis, server and workers as child processes, over the code paths of a cluster."""
