"""Commands that look at this machine, and prepare it for shares."""
