"""Real processes to test against: Redis, servers, workers, the command line."""
