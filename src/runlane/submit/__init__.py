"""Submission: requests are checked and become runs that the store accepts: tasks, orchestrations, chat turns."""
