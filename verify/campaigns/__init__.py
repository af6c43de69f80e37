"""What to run, with which sizes and seeds, in how much time."""
