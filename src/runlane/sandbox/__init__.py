"""Sandbox: evaluate conditions, expressions and scripts in processes without access to files, network, environment."""
