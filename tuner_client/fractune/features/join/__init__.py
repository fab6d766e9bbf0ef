"""Bundles of one model for several shapes become one bundle."""
