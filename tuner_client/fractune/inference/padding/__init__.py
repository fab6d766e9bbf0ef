"""What padding changes, and what other runtimes take where a bundle pads."""
