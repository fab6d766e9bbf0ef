"""A bundle at inference: the parts of `fractune.load` and `fractune.InferenceSession`."""
