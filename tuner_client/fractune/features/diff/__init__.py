"""What got faster from one job or bundle to another."""
