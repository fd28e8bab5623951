"""Values of a wrong type that an App is given are refused with a message that names them, before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runlane import App, ConfigurationError, InvalidRequest, RunlaneError
from tests.harness import settings_for

HELPER = {"id": "helper", "model": "scripted", "answers": ["hi"]}
FLOW = {"id": "flow", "steps": [{"id": "a", "type": "print", "print_content": "a"}]}
MISTAKES: dict[str, tuple[Callable[[Any], Awaitable[Any]], type[RunlaneError], str]] = {
    "a mapping of events": (lambda app: app.broadcast_many({"name": "a"}), InvalidRequest, "must be a list of objects"),
    "a list as input": (lambda app: app.orchestrate("flow", input=[1]), InvalidRequest, "must be an object, not [1]"),
    "no message": (lambda app: app.ask("helper", None), InvalidRequest, "The message must be a string"),
    "a list of definitions": (lambda app: app.sync([HELPER]), InvalidRequest, "must be a folder, or lists by kind"),
    "one definition": (lambda app: app.sync({"agents": HELPER}), InvalidRequest, '"agents" must be a list'),
    "a string of lanes": (lambda app: app.worker("media"), ConfigurationError, 'Pass lanes=["media"]'),
    "no slots": (lambda app: app.worker(concurrency=0), ConfigurationError, "concurrency=0 must be at least 1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_the_first_mistakes_are_named(tmp_path: Path, mistake: str) -> None:
    make, kind, message = MISTAKES[mistake]
    async with App(settings_for(f"sqlite:///{tmp_path / 'runs.db'}")) as app:
        await app.sync({"agents": [HELPER], "orchestrations": [FLOW]})
        with pytest.raises(kind, match=re.escape(message)):
            await make(app)
        assert [run async for run in app.list()] == []
