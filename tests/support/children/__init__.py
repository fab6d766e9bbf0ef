"""Child processes that misbehave on purpose, or say what they find."""
