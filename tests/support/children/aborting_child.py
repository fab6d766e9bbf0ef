"""A process that says why, and aborts, as C++ does at a failed assertion."""

import os
import sys

if __name__ == "__main__":
    sys.stderr.write("terminate called: no such attribute\n")
    sys.stderr.flush()
    os.abort()
