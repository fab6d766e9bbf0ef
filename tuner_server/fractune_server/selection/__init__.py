"""Which record to use at which share: for one operator, for a whole model, for a bundle."""
