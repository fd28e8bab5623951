"""Catalog: definitions are brought into the database and out of it: sync, bundles, importers."""
