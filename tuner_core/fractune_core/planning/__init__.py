"""Which model goes onto which part of which device: placement tables, integer programs, simulation."""
