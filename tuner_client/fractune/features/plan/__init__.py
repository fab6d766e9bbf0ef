"""Which model goes onto which part of which device."""
