"""A caller's model as the file for the upload."""
