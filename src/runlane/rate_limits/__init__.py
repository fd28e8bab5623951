"""Rate limits of model providers, shared by all workers: calls in flight, requests and tokens per minute, back-off."""
