"""The routes, one module per family: each translates a request, delegates, and writes the answer."""
