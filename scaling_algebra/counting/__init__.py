"""How large one Gaussian tensor network is: the half-weight rule. Knows no training."""
