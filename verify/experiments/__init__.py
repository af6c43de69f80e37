"""Claims of the papers, trained and judged."""
