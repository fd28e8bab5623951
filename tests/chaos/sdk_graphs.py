"""The graphs that the JavaScript SDK calls: those of the recorded answers, and one that ticks."""

from __future__ import annotations

from runlane import App
from tests.acceptance.api.agent_graphs import add_graphs
from tests.chaos.chaos_graphs import ticking

app = add_graphs(App())
app.graph("ticking", ticking())
