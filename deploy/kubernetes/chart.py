"""Read the Helm chart, check values against its schema, and render its objects."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import jsonschema_rs
import yaml

from deploy.kubernetes.templates import Renderer

CHART: Final = Path(__file__).parents[1] / "helm" / "runlane"
RELEASE: Final = "runlane"
NAMESPACE: Final = "runlane"


def merged(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as Helm merges them: maps by key, everything else replaced, null removes."""
    found = copy.deepcopy(dict(base))
    for key, value in other.items():
        before = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(before, dict):
            found[key] = merged(cast("dict[str, Any]", before), cast("dict[str, Any]", value))
        else:
            found[key] = copy.deepcopy(cast("Any", value))
    return found


def default_values() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def example_values(name: str) -> dict[str, Any]:
    """Return the values of an example, which an overlay corresponds to."""
    return yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text()) or {}


def render_chart(values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the objects of the chart with these values on top of the defaults."""
    given = merged(default_values(), values or {})
    check_values(given)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    root = {
        "Values": given,
        "Release": {"Name": RELEASE, "Namespace": NAMESPACE, "Service": "Helm"},
        "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
    }
    files = {f"files/{path.name}": path.read_text() for path in (CHART / "files").iterdir()}
    renderer = Renderer(files)
    renderer.define((CHART / "templates" / "_helpers.tpl").read_text())
    objects: list[dict[str, Any]] = []
    for path in sorted((CHART / "templates").glob("*.yaml")):
        text = renderer.render(path.read_text(), root)
        objects += [item for item in yaml.safe_load_all(text) if item]
    return sorted(objects, key=key_of)


def check_values(values: Mapping[str, Any]) -> None:
    """Raise if the values do not match the schema of the chart."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema_rs.validator_for(schema).validate(dict(values))


def key_of(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]
