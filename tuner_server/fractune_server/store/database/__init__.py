"""The database: SQLite or PostgreSQL, its tables, who may write to it."""
