"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# These machines are shared: how long an example takes says nothing about the code.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

# What a script starts in the background ignores Ctrl-C, and so would every command that a test stops by it.
signal.signal(signal.SIGINT, signal.default_int_handler)
