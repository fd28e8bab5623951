"""Interpreter: the pure step machine. Given the outcomes so far, it returns the steps that may be performed."""
