"""A bundle at inference: what `fractune.load` and `fractune.InferenceSession` are made of."""
