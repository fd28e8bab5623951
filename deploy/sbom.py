"""The bill of materials of the distributions: CycloneDX of uv.lock and of the dashboard's npm lock, as JSON.

    python -m deploy.sbom UV > dist/runlane.cdx.json

The same locks give the same bytes: uv's serial number and time, which differ in each export, are replaced.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).parents[1]


def python_packages(uv: str) -> dict[str, Any]:
    """Return the document of all packages that an installation with every extra has."""
    command = [uv, "export", "--frozen", "--no-dev", "--all-extras", "--format", "cyclonedx1.5"]
    done = subprocess.run(
        [*command, "--preview-features", "sbom-export", "--quiet"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def npm_packages(lock: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the packages that are part of the built dashboard; those that only build it are marked `dev`."""
    found: dict[str, dict[str, Any]] = {}
    for path, package in lock["packages"].items():
        if not path or package.get("dev") or package.get("optional"):
            continue
        name = path.rpartition("node_modules/")[2]
        algorithm, _, digest = package["integrity"].partition("-")
        purl = f"pkg:npm/{name.replace('@', '%40', 1)}@{package['version']}"
        found[purl] = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": package["version"],
            "purl": purl,
            "hashes": [{"alg": algorithm.upper().replace("SHA", "SHA-"), "content": b64decode(digest).hex()}],
        }
    return [found[purl] for purl in sorted(found)]


def bill_of_materials(uv: str) -> dict[str, Any]:
    document = python_packages(uv)
    document["components"] += npm_packages(json.loads((ROOT / "ui/package-lock.json").read_text()))
    moment = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    document["metadata"]["timestamp"] = moment.isoformat().replace("+00:00", "Z")
    document.pop("serialNumber", None)
    document["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(document, sort_keys=True))}"
    return document


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python -m deploy.sbom UV")
    json.dump(bill_of_materials(sys.argv[1]), sys.stdout, indent=1)
    print()
