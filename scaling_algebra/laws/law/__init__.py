"""Laws that are written down: their axes, exponents and identities, concrete models, and fits beside them."""
