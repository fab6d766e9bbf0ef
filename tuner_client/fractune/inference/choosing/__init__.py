"""The choice of a variant and its threads for the share of a process."""
