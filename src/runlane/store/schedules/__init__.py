"""Schedules in the database: their rows, the decisions about slots, and slots that wait for the end of a run."""
