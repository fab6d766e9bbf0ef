"""The supervisor's side of a measurement: the child runs the kernels, deadlines and verdicts are here."""
