"""The minimum of a sum of monomials: which terms balance, where, and the same in numbers."""
