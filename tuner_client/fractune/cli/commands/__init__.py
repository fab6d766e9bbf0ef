"""One file a command, in rooms of their own kinds; none knows another room."""
