"""A real stack under a seeded schedule of `kill -9`, and what it has to show for it."""
