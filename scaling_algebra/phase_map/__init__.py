"""Where in the space of rays each formula holds."""
