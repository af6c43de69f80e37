"""Reports and pictures of what was measured."""
