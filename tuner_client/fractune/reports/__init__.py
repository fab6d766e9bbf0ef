"""What was measured, for people and for programs: in tables and in pictures."""
