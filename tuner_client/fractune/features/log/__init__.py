"""The tuning log: its records, files and matches."""
