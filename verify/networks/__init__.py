"""Torch networks to measure, initialised and trained with the powers of a parameterization."""
