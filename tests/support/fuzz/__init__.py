"""Random inputs for every reader of external data: `scripts/fuzz`."""
