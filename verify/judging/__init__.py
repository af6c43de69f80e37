"""Slopes, verdicts and gates from recorded numbers. Needs no torch."""
