"""The end of a command: stopped by a signal, by a closed output or terminal, or by the end of its job."""
