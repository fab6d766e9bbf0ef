"""`python -m fractune.cli`: the same as the command `fractune`."""

from fractune.cli import main
from fractune.cli.ending import leave

if __name__ == "__main__":
    leave(main())
