"""Duties: periodic jobs that every process may do. A lock that lives as long as its transaction keeps them apart."""
