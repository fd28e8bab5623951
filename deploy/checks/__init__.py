"""Checks with real tools and real processes, run by `make deploy-check`."""
