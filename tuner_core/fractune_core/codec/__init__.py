"""Dataclasses of the project as JSON and as messages of the public contract, by the types of their fields."""
