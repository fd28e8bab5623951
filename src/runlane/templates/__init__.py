"""Templates of definitions: text and URL templates, and JSON Schema validation of values."""
