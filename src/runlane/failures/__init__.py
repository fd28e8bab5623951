"""Retries of dead letters, and bulk jobs that change many runs."""
