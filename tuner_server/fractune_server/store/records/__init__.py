"""The tuning log: records, what is known of operators, what work took."""
