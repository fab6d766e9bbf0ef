"""The placement of models on parts of devices."""
