"""The OpenAI-compatible API: agents as models, over the same durable runs as the rest of the API.

The API has no state of its own. A request starts a run, and the response is derived from the events of the run.
"""
