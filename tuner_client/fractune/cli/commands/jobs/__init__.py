"""Commands about the jobs of a server, their cost, and the log of their measurements."""
