"""Paths of earlier APIs, for clients that were written against them."""
