"""What server and workers agree on through Redis: messages and their signatures, files, marks, who is there."""
