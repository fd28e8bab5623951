"""Check that uv.lock names one public index and no mirror or local path.

uv records the index that was configured when the lock was made. A mirror's address or a local path would break the
installation on other machines, and reviewers do not read lock files.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def problems(lock: dict[str, Any]) -> Iterator[str]:
    registries: set[str] = set()
    hosts: set[str] = set()
    for package in lock["package"]:
        name, source = package["name"], package["source"]
        if "registry" in source:
            registries.add(source["registry"])
        elif source != {"editable": "."}:
            yield f"{name} comes from {source}, not from an index"
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        for file in files:
            address = urlsplit(file.get("url", file.get("path", "")))
            if address.scheme != "https":
                yield f"{name} has a file without an https address: {address.geturl()}"
            hosts.add(address.netloc)
    for what, found in (("index", registries), ("file host", hosts)):
        if len(found) != 1:
            yield f"there must be exactly one {what}, not {len(found)}: {sorted(found)}"
    yield from (f"the index is not at an https address: {url}" for url in registries if urlsplit(url).scheme != "https")


def main() -> None:
    path = Path(sys.argv[1])
    found = list(problems(tomllib.loads(path.read_text())))
    if found:
        advice = "Unset your index settings and run: uv lock"
        sys.exit("\n".join([f"{path} does not work on other machines:", *found, advice]))


main()
