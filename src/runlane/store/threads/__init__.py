"""Assistants, threads with their runs, the checkpoints of graphs, and the items that graphs store."""
