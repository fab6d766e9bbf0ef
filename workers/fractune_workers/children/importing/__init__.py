"""A model file becomes Relax, and Relax becomes operators."""
