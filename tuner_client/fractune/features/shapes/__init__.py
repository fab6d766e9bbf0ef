"""A model for several shapes: its lengths, and one bundle of the bundles of all."""
