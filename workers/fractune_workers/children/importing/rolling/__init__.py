"""Recurrences that an exporter unrolled, step by step, rolled up again."""
