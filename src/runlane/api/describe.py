"""Print the OpenAPI description of the API, for client generators. The output depends on this version only.

python -m runlane.api.describe > openapi.json
"""

from __future__ import annotations

import json
import sys

from runlane.api.server import build_api
from runlane.app import App
from runlane.settings import Settings


def describe() -> str:
    """Return the description with sorted keys. The settings of this process have no effect on it."""
    settings = Settings.model_construct()
    return json.dumps(build_api(App(settings)).openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(describe())
