"""Settings: read from the environment here and nowhere else, one module per area.

Each field is the variable RUNLANE_ plus its name in capitals, except for keys and base URLs of model providers, which
have their conventional names. Rules between fields are checked at start, so that a misconfigured process fails
immediately.
"""

from __future__ import annotations

from runlane.settings.loading import (
    CLIENT_VARIABLES,
    Settings,
    load_settings,
    redact_settings,
    unknown_variables,
    variable_of,
)
from runlane.settings.providers import OWN_PROVIDERS, SCRIPTED, CompatibleProvider, Price
from runlane.settings.secret_keys import SECRET_KEY_BYTES, parse_secret_keys
from runlane.settings.storage import DEFINITIONS_FOLDER, EMBEDDED_FILE, EMBEDDED_KEY_FILE

__all__ = [
    "CLIENT_VARIABLES",
    "DEFINITIONS_FOLDER",
    "EMBEDDED_FILE",
    "EMBEDDED_KEY_FILE",
    "OWN_PROVIDERS",
    "SCRIPTED",
    "SECRET_KEY_BYTES",
    "CompatibleProvider",
    "Price",
    "Settings",
    "load_settings",
    "parse_secret_keys",
    "redact_settings",
    "unknown_variables",
    "variable_of",
]
