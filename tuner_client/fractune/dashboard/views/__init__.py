"""A module for each view: from what the server says to a page."""
