"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# These machines are shared: how long an example takes says nothing about the code.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
