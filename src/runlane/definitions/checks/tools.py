"""Checks of what a definition says by itself about calls: schemas, URLs with places, and names of tools of servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from runlane.definitions.problem import Location, Problems, listing, near
from runlane.definitions.schema.definition import FINAL_ANSWER, Agent, Definition, McpServer, Orchestration, Tool
from runlane.definitions.schema.step import AgentStep, LlmStep
from runlane.errors import UrlTemplateError
from runlane.templates.json_schema import check_schema
from runlane.templates.url_template import header_places, parse_url

# What the protocol lets a server call its tools, and no more than that.
_TOOL: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
# These say how a message is framed, which is not for a definition to say.
_OF_THE_CONNECTION: Final = {
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect",
    "accept-encoding", "keep-alive", "proxy-connection",
}  # fmt: skip


def check_schemas(definition: Definition, place: Location, problems: Problems) -> None:
    """Note what is no JSON Schema, or not one of an object where there has to be one."""
    for step, field, schema in _schemas(definition):
        here = place.at(step=step, field=field)
        wrong = check_schema(schema)
        if wrong is not None:
            problems.error(
                here, f"It is no JSON Schema: {wrong}. Correct it; see https://json-schema.org for what it may have."
            )
        elif _of_objects(definition, field) and schema.get("type", "object") != "object":
            what = "Arguments are an object" if field == "input_schema" else "The answer is an object"
            problems.error(
                here, f'{what}, but the schema asks for {schema["type"]!r}. Write "type": "object" with properties.'
            )


def check_tool(tool: Tool, place: Location, problems: Problems) -> None:
    """Note a name that is taken, and a URL or a header that cannot be filled."""
    if tool.name == FINAL_ANSWER:
        problems.error(
            place.at(field="name"), "Models give answers that fit output_schema with a tool of this name. Take another."
        )
    if tool.tool_type != "http" or tool.url is None:
        return
    _check_headers(tool.headers, place, problems)
    try:
        template = parse_url(tool.url)
    except UrlTemplateError as error:
        _wrong_url(place, str(error), problems)
        return
    known = tool.input_schema.get("properties")
    if not isinstance(known, Mapping) or not known or tool.input_schema.get("additionalProperties"):
        return
    names = cast("Mapping[str, Any]", known)
    required = cast("list[str]", tool.input_schema.get("required") or [])
    placed = dict.fromkeys(template.fields, "url")
    for header, value in tool.headers.items():
        placed |= dict.fromkeys(header_places(value)[0], f"headers.{header}")
    for name, field in placed.items():
        if name not in names:
            problems.warn(
                place.at(field=field),
                f"Nothing tells the model of {{{name}}}{near(name, names)}: input_schema has no such property. "
                f"Properties: {listing(sorted(names))}.",
            )
        elif name in template.path_fields and name not in required:
            problems.warn(
                place.at(field=field),
                f'The path needs {{{name}}}, but "{name}" is not among what input_schema requires. Add it there.',
            )


def check_server(server: McpServer, place: Location, problems: Problems) -> None:
    """Note names that no tool can have, and a URL that is none."""
    if server.server_type == "remote" and server.url is not None:
        _check_headers(server.headers, place, problems)
        try:
            template = parse_url(server.url)
        except UrlTemplateError as error:
            _wrong_url(place, str(error), problems)
        else:
            if template.fields or template.whole:
                problems.error(
                    place.at(field="url"), "Only {secret.NAME} can be filled here: a server has no arguments."
                )
    for field, names in (("allowed_tools", server.allowed_tools or []), ("effects", list(server.effects))):
        for name in names:
            if name.startswith(f"{server.name}__"):
                problems.error(
                    place.at(field=field),
                    f'"{name}" begins with the server\'s own name. Write "{name.removeprefix(f"{server.name}__")}".',
                )
            elif _TOOL.fullmatch(name) is None:
                problems.error(
                    place.at(field=field),
                    f"{name[:100]!r} is no name of a tool: it has 1 to 128 of A-Z, a-z, 0-9, '_', '-', '.' and '/'.",
                )
    if server.allowed_tools is not None:
        for name in server.effects:
            if name not in server.allowed_tools:
                problems.warn(
                    place.at(field="effects"),
                    f'"{name[:100]}"{near(name, server.allowed_tools)} is not among allowed_tools, so it is never '
                    "called.",
                )


def _wrong_url(place: Location, why: str, problems: Problems) -> None:
    here = place.at(field="url")
    # One with a credential in it has been told of.
    if all(problem.place != here for problem in problems.errors):
        problems.error(here, why)


def _check_headers(headers: Mapping[str, str], place: Location, problems: Problems) -> None:
    for name, value in headers.items():
        here = place.at(field=f"headers.{name}")
        if _HEADER.fullmatch(name) is None:
            problems.error(here, "This is no name of a header: it has letters, digits and '-'.")
        elif name.lower() in _OF_THE_CONNECTION:
            problems.error(here, "This header is set by whoever sends the request. Remove it.")
        elif "\n" in value or "\r" in value:
            problems.error(here, "A header has no line breaks. Remove them.")


def _schemas(definition: Definition) -> Iterator[tuple[str | None, str, Mapping[str, Any]]]:
    match definition:
        case Orchestration():
            for step in definition.steps:
                if isinstance(step, (LlmStep, AgentStep)) and step.output_schema is not None:
                    yield step.id, "output_schema", step.output_schema
        case Agent() if definition.output_schema is not None:
            yield None, "output_schema", definition.output_schema
        case Tool():
            yield None, "input_schema", definition.input_schema
            if definition.output_schema is not None:
                yield None, "output_schema", definition.output_schema
        case _:
            return


def _of_objects(definition: Definition, field: str) -> bool:
    """A tool may answer with anything."""
    return field == "input_schema" or not isinstance(definition, Tool)
