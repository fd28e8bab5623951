"""Catalog: definitions into and out of the database: sync from files, bundles, import of other formats."""
