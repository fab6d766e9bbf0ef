"""The tuning log as files: JSON lines, CSV, and MetaSchedule's own database."""
