"""The API of the LangGraph clients: assistants, threads, runs of threads, and the store of graphs, at their paths."""
