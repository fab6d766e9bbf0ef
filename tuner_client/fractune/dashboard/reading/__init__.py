"""What the pages know of a server: read once for all of them."""
