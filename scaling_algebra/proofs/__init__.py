"""That the exponents are the only ones, or that there are none."""
