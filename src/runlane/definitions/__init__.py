"""Definitions: read from files, parsed with precise errors, checked as a whole, versioned and drawn."""
