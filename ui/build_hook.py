"""Build the dashboard for a wheel or a source distribution that does not have it yet.

A source distribution carries the built files, so that building a wheel from it needs no Node. Editable installs skip
this: `make ui` builds into the package. Without Node the package is built without the dashboard, and its server
explains that on /ui/.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

EDITABLE = "editable"


class DashboardBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds `ui/` into `src/runlane/ui_assets`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        built = root / "src" / "runlane" / "ui_assets" / "index.html"
        if version == EDITABLE or built.exists() or not (root / "ui" / "package-lock.json").exists():
            return
        npm = shutil.which("npm")
        if npm is None:
            self.app.display_warning("npm was not found: the package is built without the dashboard.")
            return
        subprocess.run([npm, "ci"], cwd=root / "ui", check=True)
        subprocess.run([npm, "run", "build"], cwd=root / "ui", check=True)
