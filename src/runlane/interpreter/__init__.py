"""Interpreter of orchestrations: the pure step machine. Given the outcomes so far, it returns the steps to perform."""
