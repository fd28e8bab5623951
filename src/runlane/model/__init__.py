"""Pure values and the state machine. No I/O, no clock, no randomness of its own."""
