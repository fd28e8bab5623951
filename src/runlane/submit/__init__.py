"""Submission: a request is checked and becomes a run: of a task, an orchestration, an agent or a chat turn."""
