"""The words of the theory, one line each; quantities, demands and mechanisms have theirs where they are defined.

Read next: ``scaling_algebra/commands/list.py`` (prints the glossary).
"""

from __future__ import annotations

TERMS: dict[str, str] = {
    "axis": "a dimension of the network that may grow: N, N_e, M, K, L; data, batch and steps stay fixed",
    "ray": "a way to grow: every axis is n to its rate, n the one number that grows",
    "regime": "a ray with a name: I (N, N_e), II (N, M, K), III (N, N_e, M, K)",
    "init std": "standard deviation of the initial entries of a tensor, sigma ~ n^-b",
    "lr": "learning rate of a tensor, ~ n^-c",
    "eps": "epsilon of Adam and its kin for a tensor, ~ n^-d",
    "aggregation multiplier": "what the sum over experts is multiplied by, ~ n^-alpha",
    "zero": "a tensor that starts at exactly zero; its size is no power of n",
    "tied": "all experts start from the same values",
    "free before aggregation": "a signal of one expert whose own size is not demanded, only that of the aggregate",
    "readout init": "maximal: as large as its propagating update allows; zero: the readout starts at zero",
    "x.init": "part of a signal: initial tensor times initial input, W_0 x_0",
    "x.propagating": "part of a signal: initial tensor times change of the input, W_0 dx",
    "x.effective": "part of a signal: change of the tensor times initial input, dW x_0",
    "x.cross": "part of a signal: change of the tensor times change of the input, dW dx",
    "x.change": "value after t updates minus the initial value",
    "x.update": "change of the tensor times what it reads now, dW x_t; .normalised: over the size of what it reads",
    "@t": "after t updates",
    "size": "root mean square over entries and initialisations, as a power of n",
    "Theta(1)": "of a size that neither grows nor shrinks with n",
    "LLN": "a coherent sum: it grows like the number of its terms (weight 1)",
    "CLT": "a random sum: it grows like the square root of the number of its terms (weight 1/2)",
    "matching": "pairs of equal initial tensors in a product; it says which sums are coherent",
    "monomial": "a product of initial tensors and deterministic factors, with its sums",
    "kernel": "what is left of a monomial when its matched tensors are summed away",
    "certificate": "an upper bound on all that the search left out; an exponent above it is exact",
    "undecided": "no certificate within the work limit, or beyond power counting: nothing is claimed",
    "interventions": "structural choices MSSP may make: zero router, tied experts, a signal free before aggregation",
    "cone": "all rays on which one formula holds",
    "wall": "where two formulas meet",
}
