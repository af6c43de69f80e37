"""Torch networks to measure, each with the powers of a parameterization."""
