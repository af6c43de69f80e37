"""From a tuned small model to a large one: numbers for every tensor. Read next: ``recipe.py``."""
