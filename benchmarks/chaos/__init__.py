"""A real stack under a seeded schedule of `kill -9`, and the report of such a run."""
