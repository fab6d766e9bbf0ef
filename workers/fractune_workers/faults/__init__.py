"""What becomes of the measurements on a device when one of them goes wrong."""
