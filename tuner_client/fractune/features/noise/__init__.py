"""What a measurement is worth on this machine."""
