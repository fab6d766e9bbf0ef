"""Commands that run and manage a fleet."""
