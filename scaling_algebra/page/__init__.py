"""The calculator in a browser: what the page asks, what is precomputed for it, and how its folder is put together."""
