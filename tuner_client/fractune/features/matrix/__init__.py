"""How the schedules tuned for each share do at each of the others."""
