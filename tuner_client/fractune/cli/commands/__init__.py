"""One file a command, in rooms by kind; no room imports another."""
