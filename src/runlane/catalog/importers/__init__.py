"""Importers of definitions in other formats, and of OpenAPI descriptions."""
