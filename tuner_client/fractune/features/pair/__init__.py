"""The cost of co-location: two models on one processor at the same time."""
