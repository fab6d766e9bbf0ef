"""A model as a caller has it, as the file that is sent."""
