"""Conversion between requests and the values that handlers of auth modules receive.

A handler may change a value, for example to add the owner to the metadata of a new thread. The changes are made in the
request before the route parses it, so the route validates them like the rest of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from fastapi import Request
from starlette.exceptions import HTTPException

from runlane.api.agent_auth.registry import RouteAccess, Shape

_RUN_FIELDS: Final = ("assistant_id", "metadata", "multitask_strategy", "if_not_exists", "after_seconds")
_ITEM_FIELDS: Final = ("key", "value", "index", "filter", "limit", "offset", "query", "suffix", "max_depth")
# The commands that start a run.
_STARTING: Final = frozenset({"run.start", "input.respond"})
# The field of the body that contains the namespace of a request for items.
_NAMESPACES: Final = {"search": "namespace_prefix", "list_namespaces": "prefix"}


class HandledRequest(Request):
    """A request whose body was passed to a handler, which may have changed it.

    Routes use its content. The bytes only show whether the request has a body.
    """

    def __init__(self, request: Request, body: bytes, content: Any, body_size: int) -> None:
        super().__init__(request.scope, request.receive)
        self.body_size = body_size
        self._seen = body
        self._content = content

    async def body(self) -> bytes:
        return self._seen

    async def json(self) -> Any:
        return self._content


def values_of(access: RouteAccess, request: Request, content: Any) -> list[dict[str, Any]]:
    """Return the values for the handler: one, or one for each member of a list."""
    ids = {name: id_value(value) for name, value in request.path_params.items()}
    body = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    match access.shape:
        case Shape.IDS:
            action = request.query_params.get("action")
            return [ids if action is None else {**ids, "action": action}]
        case Shape.BODY:
            return [_with_canonical_id(_picked(body, access.fields)) | ids]
        case Shape.RUN:
            return [_run_value(body) | ids]
        case Shape.COMMAND:
            return [_run_value(_table(body.get("params"))) | ids]
        case Shape.RUNS:
            members = cast("list[Any]", content) if isinstance(content, list) else []
            return [_run_value(_table(member)) for member in members]
        case Shape.THREADS:
            named: Any = body.get("thread_ids")
            given = cast("list[Any]", named) if isinstance(named, list) else []
            return [{"thread_id": item} for item in dict.fromkeys(given) if isinstance(item, str)]
        case Shape.ITEM:
            return [_item_value(access.action, request, body)]


def written_back(access: RouteAccess, request: Request, content: Any, values: list[dict[str, Any]]) -> Any:
    """Return the body with the changes of the handler."""
    match access.shape:
        case Shape.IDS | Shape.THREADS:
            return content
        case Shape.BODY:
            body = dict(cast("dict[str, Any]", content)) if isinstance(content, dict) else {}
            return body | _written(values[0], access.fields, request)
        case Shape.RUN:
            return _run_body(values[0])
        case Shape.COMMAND:
            command = _table(content)
            if command.get("method") not in _STARTING:
                return content
            params = _run_body(values[0])
            # The metadata is empty, as it was when the handler was called.
            return command | {"params": {name: params[name] for name in params if name != "metadata" or params[name]}}
        case Shape.RUNS:
            return [_run_body(value) for value in values]
        case Shape.ITEM:
            return _item_body(access.action, request, content, values[0])


def _picked(body: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    value = {name: body[name] for name in fields if body.get(name) is not None}
    if "metadata" in fields:
        value["metadata"] = _table(value.get("metadata"))
    return value


def _with_canonical_id(value: dict[str, Any]) -> dict[str, Any]:
    """Return the value with the id of a new thread or assistant in the form in which it is stored."""
    for name in ("thread_id", "assistant_id"):
        if isinstance(value.get(name), str):
            value[name] = id_value(value[name])
    return value


def _written(value: Mapping[str, Any], fields: tuple[str, ...], request: Request) -> dict[str, Any]:
    found = {name: _plain(value[name]) for name in fields if name in value and name not in request.path_params}
    if not found.get("metadata", True):
        del found["metadata"]  # empty, as it was when the handler was called
    return found


def _run_value(body: Mapping[str, Any]) -> dict[str, Any]:
    value = {name: body[name] for name in _RUN_FIELDS if body.get(name) is not None}
    value["metadata"] = _table(body.get("metadata"))
    value["kwargs"] = {name: item for name, item in body.items() if name not in _RUN_FIELDS}
    return value


def _run_body(value: Mapping[str, Any]) -> dict[str, Any]:
    return {**_table(value.get("kwargs")), **{name: value[name] for name in _RUN_FIELDS if name in value}}


def _item_value(action: str, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
    if request.method == "GET":
        labels = [label for part in request.query_params.getlist("namespace") for label in part.split(".") if label]
        return {"namespace": tuple(labels), "key": request.query_params.get("key", "")}
    value = {name: body[name] for name in _ITEM_FIELDS if name in body}
    labels: Any = body.get(_NAMESPACES.get(action, "namespace"))
    value["namespace"] = tuple(cast("list[Any]", labels)) if isinstance(labels, list) else ()
    return value


def _item_body(action: str, request: Request, content: Any, value: Mapping[str, Any]) -> Any:
    labels: Any = value.get("namespace")
    if not isinstance(labels, tuple | list) or not all(isinstance(label, str) for label in cast("list[Any]", labels)):
        raise HTTPException(403, "The auth module set a namespace that is not a list of strings.")
    namespace = list(cast("list[str]", labels))
    if request.method == "GET":
        query = [pair for pair in parse_qsl(request.url.query) if pair[0] not in ("namespace", "key")]
        query += [("namespace", label) for label in namespace] + [("key", str(value.get("key", "")))]
        request.scope["query_string"] = urlencode(query).encode()
        return content
    body = dict(cast("dict[str, Any]", content)) if isinstance(content, dict) else {}
    body |= {name: value[name] for name in _ITEM_FIELDS if name in value}
    body[_NAMESPACES.get(action, "namespace")] = namespace
    return body


def id_value(value: str) -> UUID | str:
    """Return an id in the form that handlers expect: a UUID if it is one."""
    try:
        return UUID(value)
    except ValueError:
        return value


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


def _table(value: Any) -> dict[str, Any]:
    return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}
