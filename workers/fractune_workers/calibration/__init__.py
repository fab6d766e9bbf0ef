"""The noise experiment: the reliability of measurements on this machine."""
