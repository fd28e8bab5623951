"""The resource and action of each route of the agent server, in the terms of auth modules.

While an auth module is configured, a route that is not listed is refused; a test fails for such a route. `shape`
defines how the request becomes the value for a handler, and which parts of the value the handler may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Shape(StrEnum):
    """How a request becomes the value for a handler."""

    IDS = "ids"  # the ids of the path
    BODY = "body"  # some fields of the body, which the handler may change
    RUN = "run"
    RUNS = "runs"  # a list of runs
    COMMAND = "command"  # a run that a command starts
    THREADS = "threads"  # the list thread_ids of the body, one value for each
    ITEM = "item"  # namespace, key and value of an item


class RuleSubject(StrEnum):
    """The object to which a handler's rule applies."""

    THREAD = "thread"  # the thread of the path, or of the body
    ASSISTANT = "assistant"
    SEARCH = "search"  # the route adds the rule to its SQL statement


@dataclass(frozen=True, slots=True)
class RouteAccess:
    """The resource and the action of a route, and how its request is checked."""

    resource: str
    action: str
    shape: Shape
    subject: RuleSubject
    fields: tuple[str, ...] = ()


_CREATE_FIELDS: Final = ("graph_id", "config", "context", "metadata", "if_exists", "name", "description")
_SEARCH_FIELDS: Final = ("metadata", "values", "status", "limit", "offset", "ids")


def _thread(action: str) -> tuple[RouteAccess, ...]:
    return (RouteAccess("threads", action, Shape.IDS, RuleSubject.THREAD),)


def _assistant(action: str, *fields: str) -> tuple[RouteAccess, ...]:
    shape = Shape.BODY if fields else Shape.IDS
    return (RouteAccess("assistants", action, shape, RuleSubject.ASSISTANT, fields),)


def _item(action: str) -> tuple[RouteAccess, ...]:
    return (RouteAccess("store", action, Shape.ITEM, RuleSubject.SEARCH),)


def _cron(action: str, *fields: str) -> tuple[RouteAccess, ...]:
    return (RouteAccess("crons", action, Shape.BODY if fields else Shape.IDS, RuleSubject.SEARCH, fields),)


def _search(resource: str, *fields: str) -> tuple[RouteAccess, ...]:
    return (RouteAccess(resource, "search", Shape.BODY, RuleSubject.SEARCH, fields),)


_RUN: Final = (RouteAccess("threads", "create_run", Shape.RUN, RuleSubject.THREAD),)
_CRON_FIELDS: Final = ("schedule", "end_time", "metadata", "assistant_id")

ROUTES: Final[Mapping[tuple[str, str], tuple[RouteAccess, ...]]] = {
    ("POST", "/assistants"): _assistant("create", "assistant_id", *_CREATE_FIELDS),
    ("POST", "/assistants/search"): _search("assistants", "graph_id", "metadata", "limit", "offset"),
    ("POST", "/assistants/count"): _search("assistants", "graph_id", "metadata"),
    ("GET", "/assistants/{assistant_id}"): _assistant("read"),
    ("PATCH", "/assistants/{assistant_id}"): _assistant("update", *_CREATE_FIELDS),
    ("DELETE", "/assistants/{assistant_id}"): _assistant("delete"),
    ("POST", "/assistants/{assistant_id}/versions"): _assistant("read"),
    ("POST", "/assistants/{assistant_id}/latest"): _assistant("update", "version"),
    ("GET", "/assistants/{assistant_id}/graph"): _assistant("read"),
    ("GET", "/assistants/{assistant_id}/schemas"): _assistant("read"),
    ("GET", "/assistants/{assistant_id}/subgraphs"): _assistant("read"),
    ("GET", "/assistants/{assistant_id}/subgraphs/{namespace}"): _assistant("read"),
    ("POST", "/threads"): (
        RouteAccess("threads", "create", Shape.BODY, RuleSubject.THREAD, ("thread_id", "metadata", "if_exists", "ttl")),
    ),
    ("POST", "/threads/search"): _search("threads", *_SEARCH_FIELDS),
    ("POST", "/threads/count"): _search("threads", "metadata", "values", "status"),
    ("POST", "/threads/prune"): (RouteAccess("threads", "delete", Shape.THREADS, RuleSubject.THREAD),),
    # The rules of both actions apply to the source.
    ("POST", "/threads/{thread_id}/copy"): (*_thread("read"), *_thread("create")),
    ("GET", "/threads/{thread_id}"): _thread("read"),
    ("PATCH", "/threads/{thread_id}"): (
        RouteAccess("threads", "update", Shape.BODY, RuleSubject.THREAD, ("metadata", "ttl")),
    ),
    ("DELETE", "/threads/{thread_id}"): _thread("delete"),
    ("GET", "/threads/{thread_id}/state"): _thread("read"),
    ("POST", "/threads/{thread_id}/state"): _thread("update"),
    ("GET", "/threads/{thread_id}/state/{checkpoint_id}"): _thread("read"),
    ("POST", "/threads/{thread_id}/state/checkpoint"): _thread("read"),
    ("GET", "/threads/{thread_id}/history"): _thread("read"),
    ("POST", "/threads/{thread_id}/history"): _thread("read"),
    ("GET", "/threads/{thread_id}/stream"): _thread("read"),
    ("POST", "/threads/{thread_id}/stream/events"): _thread("read"),
    ("POST", "/threads/{thread_id}/commands"): (
        RouteAccess("threads", "create_run", Shape.COMMAND, RuleSubject.THREAD),
    ),
    ("POST", "/threads/{thread_id}/runs"): _RUN,
    ("GET", "/threads/{thread_id}/runs"): _thread("read"),
    ("POST", "/threads/{thread_id}/runs/wait"): _RUN,
    ("POST", "/threads/{thread_id}/runs/stream"): _RUN,
    ("GET", "/threads/{thread_id}/runs/{run_id}"): _thread("read"),
    ("DELETE", "/threads/{thread_id}/runs/{run_id}"): _thread("delete"),
    ("GET", "/threads/{thread_id}/runs/{run_id}/join"): _thread("read"),
    ("GET", "/threads/{thread_id}/runs/{run_id}/stream"): _thread("read"),
    ("POST", "/threads/{thread_id}/runs/{run_id}/cancel"): _thread("update"),
    ("POST", "/runs"): _RUN,
    ("POST", "/runs/wait"): _RUN,
    ("POST", "/runs/stream"): _RUN,
    # The path has no thread, so the route applies the rule to the thread of the run.
    ("GET", "/runs/{run_id}/stream"): (RouteAccess("threads", "read", Shape.IDS, RuleSubject.SEARCH),),
    ("POST", "/runs/batch"): (RouteAccess("threads", "create_run", Shape.RUNS, RuleSubject.THREAD),),
    ("POST", "/runs/cancel"): (
        RouteAccess("threads", "update", Shape.BODY, RuleSubject.SEARCH, ("thread_id", "run_ids", "status")),
    ),
    ("POST", "/runs/crons"): _cron("create", *_CRON_FIELDS),
    ("POST", "/threads/{thread_id}/runs/crons"): (*_thread("read"), *_RUN, *_cron("create", *_CRON_FIELDS)),
    ("POST", "/runs/crons/search"): _cron("search", "assistant_id", "thread_id", "metadata", "limit", "offset"),
    ("POST", "/runs/crons/count"): _cron("search", "assistant_id", "thread_id", "metadata"),
    ("GET", "/runs/crons/{cron_id}"): _cron("read"),
    ("PATCH", "/runs/crons/{cron_id}"): _cron("update", *_CRON_FIELDS),
    ("DELETE", "/runs/crons/{cron_id}"): _cron("delete"),
    ("PUT", "/store/items"): _item("put"),
    ("GET", "/store/items"): _item("get"),
    ("DELETE", "/store/items"): _item("delete"),
    ("POST", "/store/items/search"): _item("search"),
    ("POST", "/store/namespaces"): _item("list_namespaces"),
}
