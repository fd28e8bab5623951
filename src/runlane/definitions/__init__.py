"""Definitions: read from files, parsed with precise errors, checked as a whole, versioned, drawn and bundled."""
