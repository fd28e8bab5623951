"""Outgoing webhooks: secrets and signatures, the guarded request, and the management of endpoints."""
