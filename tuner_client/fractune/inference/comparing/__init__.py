"""Models beside each other: timed in turn, their outputs compared."""
