"""Plans of models onto parts of devices: placement tables, integer programs, simulation."""
