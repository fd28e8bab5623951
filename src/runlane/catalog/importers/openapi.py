"""Import the operations of an OpenAPI description (3.0 or 3.1, JSON) as tools.

Each operation becomes one tool of type http whose arguments are its parameters and the fields of its body. Operations
that cannot be called correctly are skipped and reported with the reason; nothing is fetched, and recursive schemas are
cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from runlane.catalog.importers.openapi_parts import (
    MAX_DESCRIPTION,
    PATH_PARAMETER,
    credential_of,
    describe_operation,
    fields_of_body,
    is_json,
    is_list,
    list_of,
    literal_name,
    server_of,
    table_of,
)
from runlane.catalog.importers.openapi_schema import SchemaConverter, SchemaTooLarge, local
from runlane.definitions.files import unstorable
from runlane.definitions.secret_references import is_sensitive, secret_name
from runlane.domain.text import dump_json
from runlane.errors import InvalidRequest, UrlTemplateError
from runlane.templates.json_schema import MAX_DEPTH, check_schema
from runlane.templates.json_schema_cost import size_of
from runlane.templates.url_template import parse_url

MAX_OPERATIONS: Final = 2000
# Operations may share parts of the description by $ref, so their tools can have many times its size.
MAX_TOOLS_BYTES: Final = 16 * 1024 * 1024
MAX_PARTS: Final = 2_000_000
MAX_PARAMETERS: Final = 200
_MAX_PARAMETER: Final = 200
_MAX_NOTES: Final = 20
# Tool names that model providers accept.
_MAX_NAME: Final = 64
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_OTHERS: Final = ("head", "options", "trace")
_WITH_BODY: Final = ("post", "put", "patch")
_MEDIA: Final = re.compile(r"[A-Za-z0-9!#$&^_.+/;= -]{1,200}")
# OpenAPI defines that parameters of these names are ignored.
_NO_PARAMETERS: Final = {"accept", "content-type", "authorization"}


@dataclass(frozen=True, slots=True)
class SkippedOperation:
    """A part of the description that was not imported, or not completely."""

    operation: str
    why: str


@dataclass(slots=True)
class ImportedTools:
    """Tools as they are written in files, skipped operations, and differences from the description."""

    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    left_out: list[SkippedOperation] = field(default_factory=list[SkippedOperation])
    notes: list[SkippedOperation] = field(default_factory=list[SkippedOperation])


class _Cannot(Exception):
    """An operation cannot be imported."""


def import_openapi(
    spec: Any, *, name_prefix: str = "", base_url: str | None = None, headers: Mapping[str, str] | None = None
) -> ImportedTools:
    """Return the tools of a description. Raises InvalidRequest if it is not valid."""
    document = _document(spec)
    if name_prefix and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", name_prefix) is None:
        raise InvalidRequest(f"The prefix {name_prefix!r} must have 1 to 32 letters, digits, '_' or '-'.")
    if base_url is not None:
        _check_base(base_url)
    maker = _Maker(document, name_prefix, base_url, dict(headers or {}))
    for number, (path, item, method, operation) in enumerate(_operations(document)):
        if number >= MAX_OPERATIONS:
            raise InvalidRequest(f"The description has more than {MAX_OPERATIONS} operations. Split it.")
        maker.add(path, item, method, operation)
    return maker.found


def _document(spec: Any) -> Mapping[str, Any]:
    if not isinstance(spec, Mapping):
        raise InvalidRequest("An OpenAPI description must be a JSON object.")
    document = cast("Mapping[str, Any]", spec)
    problem = unstorable(dict(document))
    if problem is not None:
        raise InvalidRequest(f"The OpenAPI description cannot be used. {problem}")
    version = document.get("openapi")
    if not isinstance(version, str) or not version.startswith(("3.0", "3.1", "3.2")):
        text = f"swagger {document['swagger']}" if "swagger" in document else repr(version)
        raise InvalidRequest(f"The version {text[:40]} is not OpenAPI 3.0 or 3.1. Convert the description first.")
    if not isinstance(document.get("paths"), Mapping):
        raise InvalidRequest("The OpenAPI description has no paths.")
    return document


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str, Mapping[str, Any]]]:
    for path, raw in cast("Mapping[str, Any]", document["paths"]).items():
        item = local(raw, document)
        if not isinstance(item, Mapping) or not path.startswith("/"):
            continue
        known = cast("Mapping[str, Any]", item)
        for method in (*_METHODS, *_OTHERS):
            if isinstance(known.get(method), Mapping):
                yield path, known, method, cast("Mapping[str, Any]", known[method])


@dataclass(slots=True)
class _Arguments:
    """The arguments of a tool, while they are collected."""

    properties: dict[str, Any] = field(default_factory=dict[str, Any])
    required: list[str] = field(default_factory=list[str])
    # The argument of each path parameter, by the name of the parameter.
    path: dict[str, str] = field(default_factory=dict[str, str])
    query: list[str] = field(default_factory=list[str])
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, requested: str, schema: Any, *, required: bool, description: Any = None) -> str:
        """Add an argument and return its name, which is changed if it exists already."""
        name = re.sub(r"\W+", "_", requested, flags=re.ASCII).strip("_") or "value"
        name = name if not name[0].isdigit() and name not in ("data", "secret") else f"p_{name}"
        while name in self.properties:
            name = f"{name}_"
        if isinstance(schema, dict) and isinstance(description, str) and "description" not in schema:
            schema = {**cast("dict[str, Any]", schema), "description": description[:MAX_DESCRIPTION]}
        self.properties[name] = schema
        if required:
            self.required.append(name)
        return name


class _Maker:
    """Creates the tools of one description."""

    def __init__(self, document: Mapping[str, Any], prefix: str, base_url: str | None, headers: dict[str, str]) -> None:
        self._document = document
        self._prefix = prefix
        self._base_url = base_url
        self._headers = headers
        self._taken: set[str] = set()
        self._size = 0
        self._parts = 0
        self._notes = 0
        self.found = ImportedTools()

    def add(self, path: str, item: Mapping[str, Any], method: str, operation: Mapping[str, Any]) -> None:
        """Add one operation."""
        where = f"{method.upper()} {path}"[:300]
        self._notes = 0
        try:
            tool = self._tool(where, path, item, method, operation)
            self._size += len(dump_json(tool))
            if self._size > MAX_TOOLS_BYTES:
                raise InvalidRequest(
                    f"The tools have more than {MAX_TOOLS_BYTES} bytes in total. Import fewer operations."
                )
            self.found.tools.append(tool)
        except _Cannot as error:
            self.found.left_out.append(SkippedOperation(where, str(error)))
        except SchemaTooLarge as error:
            self.found.left_out.append(SkippedOperation(where, f"Its schemas are too large: {error}."))

    def _tool(
        self, where: str, path: str, item: Mapping[str, Any], method: str, operation: Mapping[str, Any]
    ) -> dict[str, Any]:
        if method in _OTHERS:
            raise _Cannot(f"{method.upper()} returns no content for a tool.")
        schemas = SchemaConverter(self._document)
        arguments = _Arguments()
        for parameter in self._parameters(item, operation):
            self._add_parameter(where, parameter, method, arguments, schemas)
        body = self._add_body(where, operation, method, arguments, schemas)
        if schemas.circles:
            self._note(where, "A schema contains itself; there, any value is accepted.")
        if schemas.missing:
            self._note(
                where, "A $ref of a schema cannot be resolved within the description; there, any value is accepted."
            )
        url = self._url(path, item, operation, arguments)
        schema = {
            "type": "object",
            "properties": arguments.properties,
            "required": arguments.required,
            "additionalProperties": False,
        }
        self._count(schema)
        problem = check_schema(schema)
        if problem is not None:
            raise _Cannot(f"Its schemas are not valid: {problem}.")
        self._note_security(where, operation)
        tool: dict[str, Any] = {
            "name": self._name(where, path, method, operation),
            "label": str(operation.get("summary") or "")[:200],
            "description": describe_operation(operation, where),
            "tool_type": "http",
            "method": method.upper(),
            "url": url,
            "headers": {**arguments.headers, **self._headers},
            "body": body,
            "input_schema": schema,
            "effect": "repeatable" if method == "get" else "once",
        }
        return {key: value for key, value in tool.items() if value not in ("", {}) and (key, value) != ("body", "all")}

    def _count(self, schema: Any) -> None:
        """Count the parts of all schemas, because each check of a shared part takes time again."""
        size = size_of(schema, MAX_DEPTH)
        self._parts += 0 if size is None else size.nodes + size.texts
        if self._parts > MAX_PARTS:
            raise InvalidRequest(f"The schemas of the tools have more than {MAX_PARTS} parts. Import fewer operations.")

    def _parameters(self, item: Mapping[str, Any], operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        given = [raw for owner in (item, operation) for raw in list_of(owner.get("parameters"))]
        if len(given) > MAX_PARAMETERS:
            raise _Cannot(f"It has {len(given)} parameters; at most {MAX_PARAMETERS} are supported.")
        for raw in given:
            parameter = local(raw, self._document)
            if not isinstance(parameter, Mapping):
                raise _Cannot("A parameter is missing: its $ref cannot be resolved within the description.")
            known = cast("Mapping[str, Any]", parameter)
            found[str(known.get("in")), str(known.get("name"))] = known
        return list(found.values())

    def _add_parameter(
        self, where: str, parameter: Mapping[str, Any], method: str, arguments: _Arguments, schemas: SchemaConverter
    ) -> None:
        name, position = str(parameter.get("name") or ""), str(parameter.get("in"))
        if len(name) > _MAX_PARAMETER:
            raise _Cannot(
                f"The name of a parameter has {len(name)} characters; at most {_MAX_PARAMETER} are supported."
            )
        required = parameter.get("required") is True or position == "path"
        raw = parameter.get("schema")
        contents = parameter.get("content")
        problem = ""
        if raw is None and isinstance(contents, Mapping):
            first = next(iter(cast("Mapping[str, Any]", contents).values()), None)
            raw = table_of(first).get("schema")
        if position not in ("path", "query", "header") or not name:
            problem = f'The parameter "{name}" is in {position}, which is not supported.'
        elif parameter.get("style") in ("deepObject", "spaceDelimited", "pipeDelimited", "matrix", "label"):
            problem = f'The parameter "{name}" has the style {parameter["style"]}, which is not supported.'
        elif parameter.get("explode") is False and is_list(raw, self._document):
            problem = f'The parameter "{name}" is a comma-separated list, which is not supported.'
        if position == "header" and name.lower() in {*_NO_PARAMETERS, *map(str.lower, self._headers)}:
            return
        if position == "header" and is_sensitive(name):
            self._note(
                where, f'The header "{name}" contains a credential. Pass it: {name}: {{secret.{secret_name(name)}}}.'
            )
            return
        if problem:
            if required:
                raise _Cannot(problem)
            self._note(where, f"{problem} It was skipped.")
            return
        argument = arguments.add(
            name, schemas.plain(raw or {}), required=required, description=parameter.get("description")
        )
        if position == "path":
            arguments.path[name] = argument
        elif position == "header":
            arguments.headers[name] = f"{{{argument}}}"
        elif method in _WITH_BODY or argument != name:
            arguments.query.append(f"{literal_name(name)}={{{argument}}}")

    def _add_body(
        self, where: str, operation: Mapping[str, Any], method: str, arguments: _Arguments, schemas: SchemaConverter
    ) -> str:
        """Add the fields of the body, or the body itself; return which arguments are sent as JSON."""
        found = local(operation.get("requestBody"), self._document)
        if not isinstance(found, Mapping):
            return "rest" if method in _WITH_BODY else "all"
        body = cast("Mapping[str, Any]", found)
        contents = table_of(body.get("content"))
        kinds = [kind for kind in contents if is_json(kind)]
        problem = ""
        if method not in _WITH_BODY:
            problem = f"A body of {method.upper()} is not sent."
        elif not kinds:
            problem = f"Its body is {', '.join(list(contents)[:3]) or 'not described'}; tools send JSON."
        if problem:
            if body.get("required") is True:
                raise _Cannot(problem)
            self._note(where, problem)
            return "all" if method not in _WITH_BODY else "rest"
        kind = next((kind for kind in kinds if kind.lower().startswith("application/json")), kinds[0])
        if kind != "application/json" and _MEDIA.fullmatch(kind):
            arguments.headers["Content-Type"] = kind
        schema = schemas.plain(table_of(contents[kind]).get("schema", {}), for_request=True)
        fields = fields_of_body(schema)
        if fields is None or fields.keys() & arguments.properties.keys():
            name = arguments.add("body", schema, required=body.get("required") is True)
            if name != "body":
                raise _Cannot('It has a parameter named "body" besides its body.')
            return "body"
        arguments.properties.update(fields)
        arguments.required += [
            name for name in list_of(cast("dict[str, Any]", schema).get("required")) if name in fields
        ]
        return "rest"

    def _url(self, path: str, item: Mapping[str, Any], operation: Mapping[str, Any], arguments: _Arguments) -> str:
        base = self._base_url or server_of(operation, item, self._document)
        if not base.startswith(("http://", "https://")):
            raise _Cannot("It has no server with an absolute URL. Pass a base URL.")

        def replace(found: re.Match[str]) -> str:
            if found[1] not in arguments.path:
                raise _Cannot(f"The path has {{{found[1]}}}, which no parameter describes.")
            return f"{{{arguments.path[found[1]]}}}"

        query = "&".join(arguments.query)
        url = f"{base.rstrip('/')}{PATH_PARAMETER.sub(replace, path)}{'?' if query else ''}{query}"
        try:
            parse_url(url)
        except UrlTemplateError as error:
            raise _Cannot(f"Its URL cannot be used. {error}") from None
        if len(url) > 4000:
            raise _Cannot("Its URL with all parameters is too long.")
        return url

    def _name(self, where: str, path: str, method: str, operation: Mapping[str, Any]) -> str:
        requested = operation.get("operationId")
        if not isinstance(requested, str) or not requested:
            requested = f"{method}{path}"
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{self._prefix}{requested}").strip("_-") or method
        name = name[:_MAX_NAME]
        number = 2
        while name in self._taken:
            name = f"{name[: _MAX_NAME - len(str(number)) - 1].rstrip('_')}_{number}"
            number += 1
        if number > 2:
            self._note(where, f"Another operation has the same name, so this one is named {name}.")
        self._taken.add(name)
        return name

    def _note_security(self, where: str, operation: Mapping[str, Any]) -> None:
        requested = [entry for entry in list_of(operation.get("security", self._document.get("security"))) if entry]
        schemes = table_of(table_of(self._document.get("components")).get("securitySchemes"))
        given = set(map(str.lower, self._headers))
        for name in table_of(requested[0] if requested else None):
            scheme = table_of(local(schemes.get(name), self._document))
            header, cure = credential_of(scheme)
            if header is None or header.lower() not in given:
                self._note(where, f"It needs credentials ({str(name)[:100]}). {cure}")

    def _note(self, where: str, what: str) -> None:
        self._notes += 1
        if self._notes <= _MAX_NOTES:
            self.found.notes.append(SkippedOperation(where, what))


def _check_base(url: str) -> None:
    try:
        template = parse_url(url)
    except UrlTemplateError as error:
        raise InvalidRequest(f"The base URL cannot be used. {error}") from None
    if template.parameters or template.fields or template.takes_all_arguments:
        raise InvalidRequest("The base URL must be a host and a path, without parameters or placeholders.")
