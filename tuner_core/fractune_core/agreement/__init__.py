"""Whether outputs are the same beyond rounding."""
