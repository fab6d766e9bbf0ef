"""The files that people keep: bundles and fused models."""
