"""Tools of the MCP server: what a client sees of one, which permissions it needs, and what a call of it does.

Nothing here imports the SDK. It takes a second to load, and only processes that serve an MCP client load it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson
from pydantic import ValidationError

from runlane.access.policy import may_see
from runlane.api.routes.visibility import require_visible
from runlane.api.schemas.fields import RequestModel
from runlane.api.services import Services
from runlane.domain.access import Permission, Principal
from runlane.domain.text import dump_json
from runlane.errors import InvalidRequest
from runlane.store.queue.search import RunStanding

READ: Final = frozenset({Permission.RUNS_READ})
# The result of a change is a run, so a key that may not read runs does not see these tools.
CHANGE: Final = frozenset({Permission.RUNS_READ, Permission.RUNS_WRITE})

A = TypeVar("A", bound=RequestModel)
# Reports how far a call is: a number that grows, and a line for people.
Report = Callable[[float, str], Awaitable[None]]


async def report_nothing(_progress: float, _message: str) -> None:
    """Report nothing, for callers without a progress token."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The caller of a tool or resource, and what calls work with."""

    parts: Services
    principal: Principal
    report: Report = report_nothing
    # From `_meta` of the call, for clients that set it themselves and not through the model.
    idempotency_key: str | None = None

    def may(self, needs: frozenset[Permission]) -> bool:
        """Return whether the role has these permissions."""
        return needs <= self.principal.permissions

    def sees(self, tenant: str) -> bool:
        """Return whether resources of a tenant exist for the caller."""
        return may_see(self.principal, tenant)

    async def standing(self, run_id: str) -> RunStanding:
        """Return the standing of a run that the caller may see. Raises RunNotFound."""
        return await require_visible(self.parts, self.principal, run_id)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of a call: a JSON object. `failed` reports it to the model as an error."""

    value: Mapping[str, Any]
    failed: bool = False
    text: str | None = None

    @property
    def shown(self) -> str:
        """The text for clients that ignore structured results."""
        return dump_json(self.value) if self.text is None else self.text


Perform = Callable[[CallContext, Mapping[str, Any]], Awaitable[ToolAnswer]]


@dataclass(frozen=True, slots=True)
class ServedTool:
    """One tool. By the hints, clients decide whether to ask a person before a call."""

    name: str
    title: str
    description: str
    needs: frozenset[Permission]
    input_schema: Mapping[str, Any]
    perform: Perform = field(repr=False)
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False


def typed_tool(
    name: str,
    title: str,
    arguments: type[A],
    needs: frozenset[Permission],
    perform: Callable[[CallContext, A], Awaitable[Mapping[str, Any] | ToolAnswer]],
    *,
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
) -> ServedTool:
    """Return a tool whose arguments are a model: its docstring describes the tool, its fields the arguments."""

    async def call(caller: CallContext, given: Mapping[str, Any]) -> ToolAnswer:
        answer = await perform(caller, _parsed(arguments, name, given))
        return answer if isinstance(answer, ToolAnswer) else ToolAnswer(answer)

    return ServedTool(
        name,
        title,
        " ".join((arguments.__doc__ or "").split()),
        needs,
        _schema(arguments),
        call,
        read_only=read_only,
        destructive=destructive,
        idempotent=idempotent or read_only,
    )


def _parsed(arguments: type[A], name: str, given: Mapping[str, Any]) -> A:
    try:
        # From JSON, where the name of an enum's member and an ISO time are valid even in strict mode.
        return arguments.model_validate_json(orjson.dumps(dict(given)))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'the arguments'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise InvalidRequest(f'The tool "{name}" was not called: {problems}.') from None
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f'The tool "{name}" was not called: its arguments are not JSON: {error}.') from None


def _schema(arguments: type[RequestModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    schema.pop("description", None)
    # Titles only repeat the names, and models are billed by token.
    for part in (schema, *schema.get("properties", {}).values(), *schema.get("$defs", {}).values()):
        part.pop("title", None)
    return schema
