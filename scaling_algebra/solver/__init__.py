"""Which exponents meet the desiderata: from demands to powers of the axes."""
