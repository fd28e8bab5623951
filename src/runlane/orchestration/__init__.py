"""One attempt at a run of an orchestration: replay, execution of its steps, waits, budget, children, finish."""
