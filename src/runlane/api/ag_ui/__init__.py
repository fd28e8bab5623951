"""The AG-UI protocol: user interfaces run agents and receive their events, over the same durable runs.

The protocol has no state of its own. A request starts or continues a run; the stream is derived from its events.
"""
