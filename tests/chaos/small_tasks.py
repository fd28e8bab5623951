"""An app whose module imports nothing but Runlane, for tests of what a worker imports and of its memory."""

from __future__ import annotations

import sys

from runlane import App, Context

app = App()


@app.task("loaded")
async def loaded(ctx: Context, names: list[str]) -> list[str]:
    """Return which of these modules this worker has loaded."""
    return [name for name in names if name in sys.modules]
