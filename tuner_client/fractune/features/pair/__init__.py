"""How two models fare that run on one device at the same time."""
