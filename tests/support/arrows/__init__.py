"""The rooms of the design, and how their arrows are kept."""
