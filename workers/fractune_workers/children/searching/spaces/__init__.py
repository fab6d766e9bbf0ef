"""Design spaces of operators, limits of their samples, and the first candidates in them."""
