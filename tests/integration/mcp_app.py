"""An app whose worker calls MCP servers of this machine, for processes that a test kills."""

from __future__ import annotations

from functools import partial

import httpx2

from runlane import App
from runlane.testing import crash_points
from runlane.worker import outside

crash_points.install_from_environment()
outside.Outside = partial(outside.Outside, transport=httpx2.AsyncHTTPTransport)
app = App()
