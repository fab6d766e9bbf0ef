"""Annotations of schedules that are ours. They are steps of a trace, and so parts of a candidate's identity."""

ASYNC_COPIES = "fractune.async_copies"
"""of a loop: its copies into shared memory are asynchronous. Without it TVM's pipelines copy through registers."""
