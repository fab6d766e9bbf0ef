"""The client: the command line, the one-machine stack, and bundles at inference."""

import os

# gRPC's core writes lines of its own to standard error when a server goes away; ours say it in one.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
