"""Sandbox: conditions, expressions and scripts, evaluated in processes without access to anything."""
