"""Plans as people write and read them: the plan file, tables, a picture, and what to run or apply."""
