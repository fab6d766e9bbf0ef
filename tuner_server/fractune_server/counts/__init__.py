"""What the server counts while it works, for those who watch it: `fractune_server.monitoring` shows it."""
