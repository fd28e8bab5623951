"""Templates: the languages of text and URL templates, and JSON Schema validation."""
