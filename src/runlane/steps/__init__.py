"""Steps of orchestrations: one module per family of step types. Each performs a pending step and returns its outcome."""
