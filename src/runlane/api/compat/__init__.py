"""Paths of earlier APIs, for clients that use them."""
