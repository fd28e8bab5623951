"""An app for worker processes that a test kills."""

from __future__ import annotations

from runlane import App
from runlane.testing import crash_points

crash_points.install_from_environment()
app = App()
