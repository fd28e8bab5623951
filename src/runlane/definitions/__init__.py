"""Definitions: read from files, parsed with precise errors, checked together, versioned and drawn."""
