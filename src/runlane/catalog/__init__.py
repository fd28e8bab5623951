"""Catalog: sync, export and import of definitions."""
