"""Laws between quantities that grow: sums of monomials, what balances in them, and what they allow."""
