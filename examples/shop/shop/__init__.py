"""Tasks of a small shop."""
