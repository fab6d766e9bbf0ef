"""What was measured as tables, with the sentences and the JSON that say the same."""
