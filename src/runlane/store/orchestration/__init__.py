"""The records of orchestrations: steps, calls, waits, answers, forks, children."""
