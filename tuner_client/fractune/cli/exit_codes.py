"""Exit codes of commands that did not fail; those of errors stand with the errors (docs/exit-codes.md)."""

GOAL_MISSED = 10
"""everything went well, and the goal was not reached"""
