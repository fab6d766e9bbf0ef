"""What callers hand in, checked, and what they get back."""
