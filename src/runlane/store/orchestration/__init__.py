"""What orchestrations store: steps, calls, waits, answers, forks, children."""
