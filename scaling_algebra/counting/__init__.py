"""The size of one Gaussian tensor network: the half-weight rule. Knows no training."""
