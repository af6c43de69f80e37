"""Why an exponent is what it is: the monomial, its matching, its mechanism."""
