"""Authorize requests to the agent server by the handlers of an auth module, before their routes run.

The database applies the rule that a handler returns. A thread or an assistant that the rule excludes does not exist for
the user, and searches do not return it. Routes of searches read the rule with `rule_of`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast
from uuid import UUID

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from runlane.access.stream_tokens import StreamPrincipal
from runlane.api.agent_auth.registry import ROUTES, RouteAccess, RuleSubject, Shape
from runlane.api.agent_auth.values import HandledRequest, id_value, values_of, written_back
from runlane.api.agent_server.run_schemas import with_wire_names
from runlane.api.auth import authenticate
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal, UserPrincipal
from runlane.domain.access_rule import AccessRule
from runlane.domain.graph import default_assistant_id
from runlane.errors import Conflict, Forbidden, InvalidRequest, UnknownAssistant, UnknownThread
from runlane.event_loop.offload import LARGE_BYTES
from runlane.store.threads.assistants import find_assistant
from runlane.store.threads.visibility import assistant_visibility, thread_visibility

# The key in a request's scope for the rule that its route applies.
_RULE: Final = "runlane.access_rule"
# Handlers are called for each member of a list before the route checks the length of the list.
_MAX_VALUES: Final = 1000


def rule_of(request: HTTPConnection) -> AccessRule | None:
    """Return the rule that the SQL statement of this request applies; None without one."""
    return request.scope.get(_RULE)


async def authorize(request: Request, path: str) -> Request:
    """Return the request, with the changes of the auth module. Without an auth module, return it unchanged."""
    parts = parts_of(request)
    module = parts.auth_module
    if module is None:
        return request
    principal = await authenticate(request)
    if isinstance(principal, StreamPrincipal):
        # A Runlane key has issued the token for exactly this stream.
        return request
    accesses = ROUTES.get((request.method, path))
    if accesses is None or not isinstance(principal, UserPrincipal):
        raise Forbidden("The auth module does not cover this path, so the request is refused.")
    body = await request.body()
    content = _parsed(body) if len(body) <= LARGE_BYTES else await asyncio.to_thread(_parsed, body)
    if isinstance(content, list) and any(access.shape is Shape.RUNS for access in accesses):
        # A handler must see the fields that the route will read.
        content = [with_wire_names(item) for item in cast("list[Any]", content)]
    for access in accesses:
        values = values_of(access, request, content)
        if len(values) > _MAX_VALUES:
            raise InvalidRequest(
                f"The request names {len(values)} runs or threads. Send at most {_MAX_VALUES} at once."
            )
        rule: AccessRule | None = None
        for value in values:
            found = await module.decide(principal, access.resource, access.action, value)
            rule = _and(rule, found)
        await _apply(parts, principal, request, access, values, rule)
        if access.resource == "crons":
            named: list[Any] = [value.get("assistant_id") for value in values]
            await require_assistants(request, principal, [str(name) for name in named if isinstance(name, str | UUID)])
        if body or access.shape not in (Shape.IDS, Shape.THREADS):
            content = written_back(access, request, content, values)
    return HandledRequest(request, b"" if content is None else b"{}", content, len(body))


async def visible_threads(request: Request, tenant: str, thread_ids: Sequence[str]) -> list[str]:
    """Return the threads that the rule of this request does not hide."""
    rule = rule_of(request)
    if rule is None:
        return list(thread_ids)
    found = await thread_visibility(parts_of(request).database, tenant, thread_ids, rule)
    return [thread_id for thread_id in thread_ids if found.get(thread_id)]


async def require_visible_thread(request: Request, tenant: str, thread_id: str) -> None:
    """Raise Conflict if a new thread has the id of an existing thread that is hidden from the user."""
    if not await visible_threads(request, tenant, [thread_id]):
        raise Conflict(f'The thread "{thread_id}" exists already. Use another id.')


async def thread_rule(request: Request, action: str, value: dict[str, Any]) -> AccessRule | None:
    """Return the rule for a further action of this request on threads. Raise Forbidden if the action is not allowed."""
    module = parts_of(request).auth_module
    principal = await authenticate(request)
    if module is None or not isinstance(principal, UserPrincipal):
        return None
    return await module.decide(principal, "threads", action, value)


async def require_thread(request: Request, tenant: str, thread_id: str, rule: AccessRule | None) -> None:
    """Raise UnknownThread if the rule does not allow the thread."""
    if rule is None:
        return
    if not (await thread_visibility(parts_of(request).database, tenant, [thread_id], rule)).get(thread_id):
        raise UnknownThread(thread_id)


def _parsed(body: bytes) -> Any:
    """Return the content of a body as the route would parse it; None if it is empty."""
    try:
        return json.loads(body) if body else None
    except ValueError as error:
        raise HTTPException(400, f"The body is not JSON: {error}.") from None


async def _apply(
    parts: Services,
    principal: UserPrincipal,
    request: Request,
    access: RouteAccess,
    values: Sequence[dict[str, Any]],
    rule: AccessRule | None,
) -> None:
    """Apply the rule to the named threads or assistants, or leave it for the route to apply."""
    if rule is None:
        return
    request.scope[_RULE] = _and(rule_of(request), rule)
    match access.subject:
        case RuleSubject.THREAD:
            named = _named(request, values, "thread_id")
            await _check_threads(parts, principal, access, named, rule)
        case RuleSubject.ASSISTANT:
            for assistant_id in _named(request, values, "assistant_id"):
                await _check_assistant(parts, principal, assistant_id, rule, new=access.action == "create")
        case RuleSubject.SEARCH:
            pass


async def _check_threads(
    parts: Services,
    principal: UserPrincipal,
    access: RouteAccess,
    ids: Sequence[str],
    rule: AccessRule,
) -> None:
    found = await thread_visibility(parts.database, principal.tenant, ids, rule) if ids else {}
    for thread_id in ids:
        if found.get(thread_id, True):
            continue
        if access.action == "create" and access.shape is Shape.BODY:
            # The response discloses that the id is in use, and nothing else about the thread.
            raise Conflict(f'The thread "{thread_id}" exists already. Use another id.')
        if access.shape is not Shape.THREADS:
            raise UnknownThread(thread_id)


async def _check_assistant(
    parts: Services, principal: UserPrincipal, assistant_id: str, rule: AccessRule, *, new: bool
) -> None:
    try:
        assistant = await find_assistant(parts.database, principal.tenant, assistant_id)
    except UnknownAssistant:
        if new:
            return
        raise
    found = await assistant_visibility(parts.database, principal.tenant, [assistant.id], rule)
    if not found.get(assistant.id):
        if new:
            raise Conflict(f'The assistant "{assistant_id}" exists already. Use another id.')
        raise UnknownAssistant(assistant_id, ())


async def require_assistants(request: HTTPConnection, principal: Principal, assistant_ids: Iterable[str]) -> None:
    """Raise UnknownAssistant unless the user may read these assistants. Default assistants are for every user."""
    parts = parts_of(request)
    module = parts.auth_module
    if module is None or not isinstance(principal, UserPrincipal):
        return
    for assistant_id in dict.fromkeys(assistant_ids):
        assistant = await find_assistant(parts.database, principal.tenant, assistant_id)
        if assistant.id == default_assistant_id(assistant.graph_id):
            continue
        rule = await module.decide(principal, "assistants", "read", {"assistant_id": assistant.id})
        if rule is not None:
            await _check_assistant(parts, principal, assistant.id, rule, new=False)


def _named(request: Request, values: Sequence[dict[str, Any]], name: str) -> list[str]:
    """Return the ids that the route may use: from the path, as sent and as stored, or from the body."""
    if name in request.path_params:
        sent: str = request.path_params[name]
        return list(dict.fromkeys((sent, str(id_value(sent)))))
    return [str(value[name]) for value in values if value.get(name) is not None]


def _and(first: AccessRule | None, second: AccessRule | None) -> AccessRule | None:
    if first is None or second is None:
        return first or second
    return first & second
