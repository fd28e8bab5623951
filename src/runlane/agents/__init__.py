"""Agents: the loop of model answers and tool calls, its journal, and the live stream of an answer."""
