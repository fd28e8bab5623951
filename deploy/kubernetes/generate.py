"""Generate the files that repeat others: `python -m deploy.kubernetes.generate`.

The chart is the source of the plain manifests: deploy/k8s/base is the chart with its default values, and each overlay
is its difference to the chart with the values of an example. The chart's copies of rules and dashboards come from
deploy/observability.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.kubernetes.chart import CHART, NAMESPACE, example_values, key_of, render_chart
from deploy.kubernetes.overlays import Object, diff

K8S: Final = Path(__file__).parents[1] / "k8s"
OVERLAYS: Final = ("minimal", "ha", "keda", "openshift")
_OBSERVABILITY: Final = Path(__file__).parents[1] / "observability"
_NOTE: Final = "# Generated from the Helm chart: python -m deploy.kubernetes.generate\n"


class _Dumper(yaml.SafeDumper):
    """Writes lists indented and long text as blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, indentless=False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def dump(value: Any) -> str:
    """Return YAML with a fixed layout."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def copies() -> dict[str, str]:
    """Return the chart's copies of rules and dashboards, by file name."""
    sources = [
        _OBSERVABILITY / "prometheus" / "runlane.rules.yaml",
        *sorted((_OBSERVABILITY / "grafana").glob("*.json")),
    ]
    return {source.name: source.read_text() for source in sources}


def manifests() -> dict[str, str]:
    """Return every file below deploy/k8s, by its path."""
    base = render_chart()
    files = {f"base/{_file(item)}": _NOTE + dump(item) for item in base}
    files["base/kustomization.yaml"] = _kustomization([_file(item) for item in base], ())
    for name in OVERLAYS:
        files |= {f"overlays/{name}/{path}": text for path, text in _overlay(base, name).items()}
    return files


def _overlay(base: Sequence[Object], name: str) -> dict[str, str]:
    before = {key_of(item): item for item in base}
    after = {key_of(item): item for item in render_chart(example_values(name))}
    added = [after[key] for key in sorted(after.keys() - before.keys())]
    patches: list[dict[str, Any]] = []
    for key, item in sorted(before.items()):
        if key not in after:
            gone = {"$patch": "delete", "apiVersion": item["apiVersion"], "kind": key[0], "metadata": {"name": key[1]}}
            patches.append({"patch": dump(gone)})
        elif operations := list(diff(item, after[key])):
            patches.append({"target": {"kind": key[0], "name": key[1]}, "patch": dump(operations)})
    files = {_file(item): _NOTE + dump(item) for item in added}
    files["kustomization.yaml"] = _kustomization(["../../base", *files], patches)
    return files


def _kustomization(resources: Sequence[str], patches: Sequence[Mapping[str, Any]]) -> str:
    content: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "resources": list(resources),
    }
    if patches:
        content["patches"] = list(patches)
    return _NOTE + dump(content)


def _file(item: Object) -> str:
    kind, name = key_of(item)
    return f"{kind.lower()}-{name}.yaml"


def main() -> None:
    for name, text in copies().items():
        (CHART / "files" / name).write_text(text)
    shutil.rmtree(K8S, ignore_errors=True)
    for path, text in manifests().items():
        file = K8S / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
