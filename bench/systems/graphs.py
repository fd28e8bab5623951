"""The measured graphs, hosted by Runlane."""

from __future__ import annotations

from bench.systems.graph_shapes import held, three
from runlane import App

app = App()
app.graph("three", three)
app.graph("held", held)
