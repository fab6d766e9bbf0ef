"""A bundle at inference: what `tuner_client.load` and `tuner_client.InferenceSession` are made of."""
