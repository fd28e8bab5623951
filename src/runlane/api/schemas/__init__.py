"""Request and response bodies, one module for each module of routes."""
