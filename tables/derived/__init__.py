"""Recomputes the published tables, deriving every cell."""
