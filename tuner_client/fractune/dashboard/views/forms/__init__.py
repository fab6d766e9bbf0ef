"""Views that answer a form: they are computed when it is sent, and stay as they are."""
