"""Another CPU in the place of the host, as far as the default target goes."""

import os

import pytest

asks_the_host = pytest.mark.skipif(
    bool(os.environ.get("FRACTUNE_TEST_CPU")), reason="FRACTUNE_TEST_CPU replaces the host's target"
)
"""a test of how the default target follows from the host"""
