"""The loss of the schedules tuned for each share at every other share."""
