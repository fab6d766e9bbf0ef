"""The tuning log and the jobs: SQLite by default, PostgreSQL by URL."""
