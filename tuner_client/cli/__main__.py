"""`python -m tuner_client.cli`: the same as the command `fractune`."""

import sys

from tuner_client.cli import main

if __name__ == "__main__":
    sys.exit(main())
