"""Bundles: definitions of all kinds in one JSON object, to move them between installations.

The format is that of the original product, with Runlane's marker beside its own. Exported bundles never contain
credentials; a blank, a placeholder or a credential in an imported bundle is replaced by a reference {secret.NAME}, and
the report lists the secrets that are needed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, cast

import orjson
from pydantic import Field

from runlane.catalog.importers.foreign import (
    Warn,
    bind_first_input,
    tidy_agent,
    tidy_orchestration,
    tidy_server,
    tidy_tool,
)
from runlane.catalog.importers.schedules import schedule_of, tidy_schedule
from runlane.definitions.files import DefinitionSource, unstorable
from runlane.definitions.loader import LoadedDefinitions
from runlane.definitions.parser import DefinitionParser
from runlane.definitions.problem import Problem, Problems, TooManyProblems
from runlane.definitions.schema.definition import Definition, Kind, Orchestration, Tool
from runlane.definitions.scope import ParsedDefinition
from runlane.definitions.secret_references import SECRET, is_sensitive, secret_name
from runlane.definitions.versions import canonical, kind_of
from runlane.errors import InvalidRequest, TemplateError

MARKER: Final = "runlane_export"
MARKERS: Final = (MARKER, "synapse_export")
LISTS: Final[dict[Kind, str]] = {
    "orchestration": "orchestrations",
    "agent": "agents",
    "mcp_server": "mcp_servers",
    "tool": "custom_tools",
    "schedule": "schedules",
    "trigger": "triggers",
}
FORMAT: Final = "1.0"
_BLANK: Final = re.compile(
    r"\s*|x{3,}|\*{3,}|•{3,}|<[^<>]*>|\$\{?\w+\}?|\{\{\s*\w+\s*\}\}"
    r"|change.?me|redacted|(your|my|insert)[-_ ].*|.*_here",
    re.IGNORECASE,
)
# A tool works without these, so a blank value is not a missing secret.
_PLAIN_HEADERS: Final = {"accept", "accept-language", "content-type", "user-agent", "cache-control"}


@dataclass(frozen=True, slots=True)
class RequiredSecret:
    """A secret that must be stored before the definition that refers to it can be used."""

    name: str
    kind: Kind
    id: str
    field: Annotated[str, Field(description="The location of the reference.", examples=["env.GITHUB_TOKEN"])]


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """A definition that was skipped, and the reason."""

    kind: Kind
    id: str
    reason: str


@dataclass(slots=True)
class BundleContents:
    """The content of a bundle."""

    loaded: LoadedDefinitions
    skipped: list[SkippedItem] = field(default_factory=list[SkippedItem])
    secrets: list[RequiredSecret] = field(default_factory=list[RequiredSecret])


def pack(definitions: Iterable[Definition], exported_at: str) -> dict[str, Any]:
    """Return a bundle of these definitions."""
    lists: dict[str, list[Any]] = {name: [] for name in LISTS.values()}
    has_code = False
    for definition in sorted(definitions, key=lambda found: (kind_of(found), found.id)):
        lists[LISTS[kind_of(definition)]].append(orjson.loads(canonical(definition)))
        has_code = has_code or (isinstance(definition, Tool) and definition.tool_type == "python")
    return {MARKER: True, "version": FORMAT, "exported_at": exported_at, "has_python_tools": has_code, **lists}


def unpack(bundle: Any, only: Mapping[Kind, Collection[str]] | None = None) -> BundleContents:
    """Return the definitions in a bundle, all of them or `only` those that are named."""
    table = _checked(bundle)
    found: list[ParsedDefinition] = []
    problems: list[Problem] = []
    unpacked = BundleContents(LoadedDefinitions(found, problems))
    seen: set[tuple[Kind, str]] = set()
    for kind, name in LISTS.items():
        for body in [*_entries(table, name, kind), *(_own_schedules(table) if kind == "schedule" else ())]:
            item = DefinitionSource(kind, body)
            known = item.location.id or f"number {len(seen) + 1}"
            if only is not None and known not in only.get(kind, ()):
                continue
            if (kind, known) in seen:
                unpacked.skipped.append(SkippedItem(kind, known, "The bundle contains an earlier item with this name."))
                continue
            seen.add((kind, known))
            own = Problems()
            definition = _read(item, own, unpacked.secrets)
            problems += own.warnings
            if definition is None:
                reason = "; ".join(problem.brief for problem in own.errors[:3])
                unpacked.skipped.append(SkippedItem(kind, known, reason))
            else:
                found.append(
                    ParsedDefinition(
                        definition,
                        DefinitionSource(kind, {**body, "id": definition.id, "name": definition.id}).location,
                    )
                )
    return unpacked


def _checked(bundle: Any) -> dict[str, Any]:
    if not isinstance(bundle, dict):
        raise InvalidRequest("A bundle must be an object. Export one: runlane bundle export")
    table = cast("dict[str, Any]", bundle)
    if not any(table.get(marker) is True for marker in MARKERS):
        raise InvalidRequest(
            f'This is not a bundle: it has neither "{MARKERS[0]}": true nor "{MARKERS[1]}": true. '
            "Store definitions in files with: runlane sync --dir DIR"
        )
    version = str(table.get("version", FORMAT))
    if version.partition(".")[0] != FORMAT.partition(".")[0]:
        raise InvalidRequest(f"The bundle has format {version[:20]}; this version reads {FORMAT}.")
    problem = unstorable(table)
    if problem is not None:
        raise InvalidRequest(f"The bundle cannot be stored. {problem}")
    return table


def _entries(table: dict[str, Any], name: str, kind: Kind) -> list[dict[str, Any]]:
    # A bundle written by hand may use the name of the folder, "tools".
    given = table.get(name, table.get("tools") if kind == "tool" else None)
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in cast("list[Any]", given)):
        raise InvalidRequest(f'"{name}" in the bundle must be a list of objects.')
    return cast("list[dict[str, Any]]", given)


def _own_schedules(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schedules that orchestrations of other tools contain."""
    found = (schedule_of(body) for body in _entries(table, LISTS["orchestration"], "orchestration"))
    return [schedule for schedule in found if schedule is not None]


def _read(item: DefinitionSource, problems: Problems, secrets: list[RequiredSecret]) -> Definition | None:
    def warn(message: str, step: str | None) -> None:
        problems.warn(item.location.at(step=step), message)

    needed: list[RequiredSecret] = []
    match item.kind:
        case "orchestration":
            body = tidy_orchestration(item.body, warn)
        case "agent":
            body = tidy_agent(item.body, warn)
        case "tool":
            body = _tool_secrets(tidy_tool(item.body, warn), needed, warn)
        case "mcp_server":
            body = _server_secrets(tidy_server(item.body, warn), needed, warn)
        case "schedule":
            if item.body.get("enabled") is False:
                problems.error(item.location, "It is disabled where it was exported. Enable it there, then import it.")
                return None
            body = tidy_schedule(item.body, warn)
        case "trigger":
            body = dict(item.body)
    try:
        definition = DefinitionParser(problems, lenient=True).parse(DefinitionSource(item.kind, body))
    except TooManyProblems:
        return None
    if definition is None:
        return None
    secrets += needed
    return _bound(definition, warn) if isinstance(definition, Orchestration) else definition


def _bound(definition: Orchestration, warn: Warn) -> Orchestration:
    try:
        bound, key = bind_first_input(definition)
    except TemplateError:
        # Reported by the checks, with its location.
        return definition
    if key is not None:
        warn(f"{{{{{key}}}}} of the first step is never set; the run's message replaces it.", None)
    return bound


def _tool_secrets(body: dict[str, Any], needed: list[RequiredSecret], warn: Warn) -> dict[str, Any]:
    headers = body.get("headers")
    if isinstance(headers, dict):
        kept = {
            key: value
            for key, value in cast("dict[str, Any]", headers).items()
            if not (key.lower() in _PLAIN_HEADERS and _is_blank(value))
        }
        body["headers"] = _referring(kept, "tool", str(body.get("name", "")), "headers", needed, warn)
    elif headers is not None and not headers:
        del body["headers"]
    return body


def _server_secrets(body: dict[str, Any], needed: list[RequiredSecret], warn: Warn) -> dict[str, Any]:
    name = str(body.get("name", ""))
    for section in ("env", "headers"):
        if isinstance(body.get(section), dict):
            table = cast("dict[str, Any]", body[section])
            body[section] = _referring(table, "mcp_server", name, section, needed, warn)
        elif section in body and not body[section]:
            del body[section]
    token = body.get("token")
    if isinstance(token, str) and token:
        body["token"] = _referring({"token": token}, "mcp_server", name, "", needed, warn)["token"]
    return body


def _referring(
    table: dict[str, Any], kind: Kind, owner: str, section: str, needed: list[RequiredSecret], warn: Warn
) -> dict[str, Any]:
    """Return the values, with references instead of blanks, placeholders and credentials."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        field_name = f"{section}.{name}" if section else name
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)  # noqa: PLW2901 - environment values are strings
        found[name] = value
        if value is not None and not isinstance(value, str):
            continue
        if value and SECRET.search(value):
            needed += (RequiredSecret(secret, kind, owner, field_name) for secret in SECRET.findall(value))
        elif _is_blank(value) or is_sensitive(name):
            if not _is_blank(value):
                warn(f"The credential in {field_name} was removed; store it as a secret.", None)
            secret = _secret_for(owner, name)
            scheme = "Bearer " if name.lower() == "authorization" else ""
            found[name] = f"{scheme}{{secret.{secret}}}"
            needed.append(RequiredSecret(secret, kind, owner, field_name))
    return found


def _secret_for(owner: str, name: str) -> str:
    first, second = secret_name(owner), secret_name(name)
    return second if first in second else f"{first}_{second}"[:128]


def _is_blank(value: Any) -> bool:
    if not isinstance(value, str):
        return value is None
    bare = re.sub(r"^\s*(bearer|basic|token)\s+", "", value, flags=re.IGNORECASE)
    return _BLANK.fullmatch(bare[:200]) is not None
