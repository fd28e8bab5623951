"""Parts of an OpenAPI description: servers, credentials, descriptions, and the fields of bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from runlane.catalog.importers.openapi_schema import local

MAX_DESCRIPTION: Final = 1000
PATH_PARAMETER: Final = re.compile(r"\{([^{}]*)\}")


def server_of(*owners: Mapping[str, Any]) -> str:
    """Return the first server of the innermost owner that has one, with the defaults of its variables."""
    for owner in owners:
        for server in list_of(owner.get("servers"))[:1]:
            if isinstance(server, Mapping):
                return _server_url(cast("Mapping[str, Any]", server))
    return ""


def _server_url(server: Mapping[str, Any]) -> str:
    variables = table_of(server.get("variables"))
    return PATH_PARAMETER.sub(lambda found: _default(variables.get(found[1])), str(server.get("url") or ""))


def _default(variable: Any) -> str:
    return str(table_of(variable).get("default", ""))


def credential_of(scheme: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the header of a credential, or None if it is sent elsewhere, and how to pass it."""
    name = str(scheme.get("name"))[:100]
    match scheme.get("type"), scheme.get("in"):
        case "apiKey", "query":
            return None, f"Add {literal_name(name)}={{secret.NAME}} to the parameters in its url."
        case "apiKey", "cookie":
            header, value = "Cookie", f"{name}={{secret.NAME}}"
        case "apiKey", _:
            header, value = name, "{secret.NAME}"
        case _:
            kind = "Basic" if str(scheme.get("scheme")).lower() == "basic" else "Bearer"
            header, value = "Authorization", f"{kind} {{secret.NAME}}"
    return header, f"Pass a header such as {header}: {value}."


def describe_operation(operation: Mapping[str, Any], where: str) -> str:
    parts = [str(operation[key]).strip() for key in ("summary", "description") if operation.get(key)]
    text = "\n\n".join(dict.fromkeys(parts)) or where
    return text if len(text) <= MAX_DESCRIPTION else f"{text[: MAX_DESCRIPTION - 1]}…"


def fields_of_body(schema: Any) -> dict[str, Any] | None:
    """Return the fields of a body that is a plain object; None if it must be one argument."""
    if not isinstance(schema, dict):
        return None
    table = cast("dict[str, Any]", schema)
    fields = table.get("properties")
    odd = any(word in table for word in ("allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "nullable"))
    if odd or table.get("type", "object") != "object" or not isinstance(fields, dict) or not fields:
        return None
    return None if table.get("additionalProperties") else cast("dict[str, Any]", fields)


def is_list(schema: Any, document: Mapping[str, Any]) -> bool:
    return table_of(local(schema, document)).get("type") == "array"


def is_json(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media == "application/json" or media.endswith("+json")


def literal_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.~\[\]-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def list_of(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def table_of(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
