"""A bundle beside other runtimes at its shares; the fastest serves."""
