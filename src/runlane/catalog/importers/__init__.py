"""Importers: definitions of other formats, and OpenAPI descriptions."""
