"""Batch and number of tokens: invariants, what they ask of an optimizer's quantities, and public rules."""
