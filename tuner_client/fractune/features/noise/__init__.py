"""The reliability of measurements on this machine."""
