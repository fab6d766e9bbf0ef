"""The models that a server knows, tuned again."""
