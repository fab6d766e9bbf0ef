"""Variants of one model as one fused model."""
