"""Routes, one module per family: each parses a request, delegates, and serializes the response."""
