"""Definitions as files and bundles: read, checked, versioned, brought into the database."""
