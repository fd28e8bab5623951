"""Performing steps: one module per family of step types. Each turns a todo into an outcome."""
