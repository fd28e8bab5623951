"""Interpreter of orchestrations: the pure step machine. Given what has happened, it returns what may be performed now."""
