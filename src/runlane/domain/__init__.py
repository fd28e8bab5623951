"""Domain: pure values and the transitions of a run. No I/O, no clock, no randomness of its own."""
