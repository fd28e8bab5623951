"""The AG-UI protocol: user interfaces run agents and receive their events, over the same durable runs.

It has no state of its own. A request starts or continues a run, and the stream is derived from the events of the run.
"""
