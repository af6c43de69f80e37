"""Published against derived against measured, and the errata that follow."""
