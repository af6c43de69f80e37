"""Reports and pictures of measured exponents."""
