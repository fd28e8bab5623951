"""JSON patches between objects, and the part of kustomize that the overlays use.

An overlay is the difference between the chart with its defaults and the chart with the values of an example.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from deploy.kubernetes.chart import key_of

Object = dict[str, Any]


def diff(before: Any, after: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Return the operations of a JSON patch that turn one value into the other.

    Lists of objects with the same length are compared one by one; other lists are replaced as a whole.
    """
    if before == after:
        return
    if _are_objects(before) and _are_objects(after) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from diff(one, other, f"{path}/{index}")
        return
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield {"op": "replace", "path": path, "value": after}
        return
    old, new = cast("Object", before), cast("Object", after)
    for key in sorted({*old, *new}):
        place = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
        if key not in new:
            yield {"op": "remove", "path": place}
        elif key not in old:
            yield {"op": "add", "path": place, "value": new[key]}
        else:
            yield from diff(old[key], new[key], place)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in cast("list[Any]", value))


def apply_patch(target: Object, operations: Sequence[Mapping[str, Any]]) -> Object:
    """Return the object after a JSON patch."""
    found = copy.deepcopy(target)
    for operation in operations:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].removeprefix("/").split("/")
        )
        place: Any = found
        for part in parents:
            place = cast("Any", place[int(part)] if isinstance(place, list) else place[part])
        match operation["op"]:
            case "remove":
                del place[last]
            case "replace" if isinstance(place, dict) and last not in place:
                raise KeyError(operation["path"])
            case _:
                place[last] = copy.deepcopy(operation["value"])
    return found


def build(folder: Path) -> list[Object]:
    """Return the objects of a kustomization: its resources, with its patches."""
    config = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = {*config} - {"apiVersion", "kind", "namespace", "resources", "patches"}
    if unknown:
        raise ValueError(f"{folder}: {sorted(unknown)} is not supported here")
    objects: dict[tuple[str, str], Object] = {}
    for name in config["resources"]:
        path = folder / name
        found = build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
        objects |= {key_of(item): item for item in found}
    for patch in config.get("patches", ()):
        content = yaml.safe_load(patch["patch"])
        if isinstance(content, dict):
            if content.get("$patch") != "delete":
                raise ValueError(f"{folder}: only deletions and JSON patches are supported here")
            del objects[key_of(cast("Object", content))]
            continue
        key = patch["target"]["kind"], patch["target"]["name"]
        objects[key] = apply_patch(objects[key], content)
    return sorted(objects.values(), key=key_of)
