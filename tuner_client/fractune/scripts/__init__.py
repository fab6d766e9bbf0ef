"""The user's own model scripts (TVMScript), run where the user is: only the modules that they make are sent."""
