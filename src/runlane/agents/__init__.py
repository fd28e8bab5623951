"""Models: what a step asks when it needs an answer that is not computed."""
