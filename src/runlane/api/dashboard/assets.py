"""The built files of the dashboard, read once when a server starts.

The build writes `index.html`, files with a hash of their content under `assets/`, and beside each file that compresses
well a `.br` and a `.gz`. Nothing else can be served, because a path is a key of this table, not the name of a file.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

FOLDER: Final = "ui_assets"
INDEX: Final = "index.html"
# Files below this folder have a hash of their content in their name, so they never change.
HASHED: Final = "assets/"
# The encodings in the order of preference.
_ENCODINGS: Final = (("br", ".br"), ("gzip", ".gz"))
_MAX_BYTES: Final = 32 * 1024 * 1024
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file: its type, a hash of its content, and its content by encoding. `identity` is the uncompressed content."""

    media_type: str
    etag: str
    content: Mapping[str, bytes]
    immutable: bool

    def encoded(self, accepted: str) -> tuple[str, bytes]:
        """Return the best encoding that an Accept-Encoding header allows, and the content in it."""
        wanted = _accepted(accepted)
        for name, _ in _ENCODINGS:
            if name in self.content and name in wanted:
                return name, self.content[name]
        return "identity", self.content["identity"]


@dataclass(frozen=True, slots=True)
class DashboardFiles:
    """The page and its files by path. `etag` is different for every build."""

    index: str
    assets: Mapping[str, Asset]
    etag: str


def load_dashboard(folder: Traversable | None = None) -> DashboardFiles | None:
    """Return the files of the dashboard; None if this package was built without them."""
    root = files("runlane").joinpath(FOLDER) if folder is None else folder
    if not root.joinpath(INDEX).is_file():
        return None
    contents = dict(_walk(root))
    if sum(map(len, contents.values())) > _MAX_BYTES:
        raise ValueError(f"The files of the dashboard have more than {_MAX_BYTES} bytes. Build it again: make ui")
    plain = [path for path in contents if not path.endswith(tuple(suffix for _, suffix in _ENCODINGS))]
    assets = {path: _asset(path, contents) for path in plain if path != INDEX}
    digest = sha256(b"".join(path.encode() + contents[path] for path in sorted(plain))).hexdigest()[:32]
    return DashboardFiles(contents[INDEX].decode(), assets, f'"{digest}"')


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{path}/")
        else:
            yield path, entry.read_bytes()


def _asset(path: str, contents: Mapping[str, bytes]) -> Asset:
    body = contents[path]
    encoded = {name: contents[path + suffix] for name, suffix in _ENCODINGS if path + suffix in contents}
    suffix = path[path.rfind(".") :] if "." in path else ""
    media_type = _TYPES.get(suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    return Asset(media_type, etag, {"identity": body, **encoded}, immutable=path.startswith(HASHED))


def _accepted(header: str) -> set[str]:
    found: set[str] = set()
    for part in header.lower().split(","):
        name, _, parameters = part.partition(";")
        if parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            found.add(name.strip())
    return found
