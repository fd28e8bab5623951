"""Maintenance: periodic services that every process may execute. A lock per transaction keeps them apart."""
