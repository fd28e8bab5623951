"""The pure step machine: what an orchestration does next, given what has happened."""
