"""One file a command: what is done with a model."""
