"""The use of the fleet by jobs, and its cost."""
