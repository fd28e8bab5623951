"""Tools of the MCP server: the description for clients, the required permissions and the function of each tool.

This module does not import the SDK, which takes a second to load and is loaded only in processes that serve MCP
clients.
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
from runlane.domain.validation import listed_errors, too_many
from runlane.errors import InvalidRequest
from runlane.store.queue.search import RunStanding

READ: Final = frozenset({Permission.RUNS_READ})
# The result of a change is a run, so these tools are hidden from keys that may not read runs.
CHANGE: Final = frozenset({Permission.RUNS_READ, Permission.RUNS_WRITE})

A = TypeVar("A", bound=RequestModel)
# Report the progress of a call: a number that increases, and a line for people.
Report = Callable[[float, str], Awaitable[None]]


async def report_nothing(_progress: float, _message: str) -> None:
    """Do nothing. This is the report function for callers without a progress token."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The caller of a tool or resource, and the services that calls use."""

    parts: Services
    principal: Principal
    report: Report = report_nothing
    # The key from `_meta` of the call, for clients that set it themselves instead of through the model.
    idempotency_key: str | None = None

    def may(self, needs: frozenset[Permission]) -> bool:
        """Return whether the role has these permissions."""
        return needs <= self.principal.permissions

    def sees(self, tenant: str) -> bool:
        """Return whether the caller may see resources of a tenant."""
        return may_see(self.principal, tenant)

    async def standing(self, run_id: str) -> RunStanding:
        """Return the standing of a run. Raise RunNotFound if the caller may not see the run."""
        return await require_visible(self.parts, self.principal, run_id)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of a call: a JSON object. If `failed` is true, the model receives it as an error."""

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
    """One tool. Clients use the hints to decide whether to ask a person before a call."""

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
    """Return a tool with a model as its arguments.

    The docstring of the model describes the tool, the fields the arguments.
    """

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
        # The arguments are parsed from JSON, where the value of an enum and an ISO time are valid in strict mode.
        return arguments.model_validate_json(orjson.dumps(dict(given)))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'the arguments'}: {item['msg']}"
            for item in listed_errors(error)
        )
        listed = problems or too_many(error).rstrip(".")
        raise InvalidRequest(f'The tool "{name}" was not called: {listed}.') from None
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f'The tool "{name}" was not called: its arguments are not JSON: {error}.') from None


def _schema(arguments: type[RequestModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    schema.pop("description", None)
    # Titles repeat the names of the fields, and models are billed by token.
    for part in (schema, *schema.get("properties", {}).values(), *schema.get("$defs", {}).values()):
        part.pop("title", None)
    return schema
