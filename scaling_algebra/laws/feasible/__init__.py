"""Assumptions between growing quantities: what they allow, or which of them contradict each other."""
