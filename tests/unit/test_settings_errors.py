"""A wrong setting is refused with the name of the variable that holds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runlane import InvalidSettings, Settings
from runlane.settings import load_settings

SOURCE = Path(__file__).parents[2] / "src" / "runlane"


def test_a_wrong_url_names_its_variable_and_not_its_password() -> None:
    with pytest.raises(InvalidSettings, match=r"RUNLANE_DATABASE_URL: the URL must begin with") as caught:
        load_settings(database_url="mysql://u:secret@h/d")
    assert "secret" not in str(caught.value)


def test_every_setting_is_used() -> None:
    code = "\n".join(file.read_text() for file in SOURCE.rglob("*.py") if file.parent.name != "settings")
    # These replace or provide other settings, which the code uses.
    for module in ("storage", "loading", "dashboard"):
        code += (SOURCE / "settings" / f"{module}.py").read_text().replace("self.", "settings.")
    provided = {f"{name}_file" for name in ("database_url", "migrations_database_url", "redis_url")}
    unused = [
        name for name in Settings.model_fields if not re.search(rf"settings\.{name}\b", code) and name not in provided
    ]
    assert unused == []
