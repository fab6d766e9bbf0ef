"""The smallest share at which a model is nearly as fast as on the whole device."""
