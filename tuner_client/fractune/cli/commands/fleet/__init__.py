"""One file a command: what looks after a fleet, its parts and its machines."""
