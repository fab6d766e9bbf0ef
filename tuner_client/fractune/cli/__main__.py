"""`python -m fractune.cli`: the same as the command `fractune`."""

import sys

from fractune.cli import main

if __name__ == "__main__":
    sys.exit(main())
