"""Secrets in definitions: definitions refer to them as {secret.NAME} and never contain their values.

Definitions are stored, versioned forever, displayed and exported. So a value in a field for credentials (headers,
environment, tokens) is refused, and a string in the format of a credential is refused in any field. Messages do not
contain such a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from runlane.definitions.problem import Location, Problems
from runlane.definitions.schema.definition import Definition, McpServer, Tool

SECRET: Final = re.compile(r"\{secret\.([A-Za-z_][A-Za-z0-9_]{0,127})\}")
_ALMOST: Final = re.compile(r"\{\s*secret\b")
# Words in the names of headers, variables and parameters whose values are confidential.
_SENSITIVE: Final = re.compile(
    r"authorization|token|secret|passw(or)?d|passphrase|credential|cookie|signature"
    r"|(^|[^a-z])(key|apikey|pat|pwd|auth|bearer)($|[^a-z])",
    re.IGNORECASE,
)
_SCHEME: Final = re.compile(r"^(bearer|basic|token|apikey|api-key|key|bot)?\s*$", re.IGNORECASE)
_PLAIN: Final = re.compile(
    r"(?<![A-Za-z0-9])("
    r"sk-[A-Za-z0-9_-]{20,200}|sk_(?:live|test)_[A-Za-z0-9]{16,200}|gh[pousr]_[A-Za-z0-9]{30,200}"
    r"|github_pat_[A-Za-z0-9_]{30,200}|glpat-[A-Za-z0-9_-]{18,200}|xox[abeprs]-[A-Za-z0-9-]{10,200}"
    r"|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|eyJ[A-Za-z0-9_-]{10,400}\.eyJ[A-Za-z0-9_-]{10,400}\."
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)"
)
_BEARER: Final = re.compile(r"^\s*(bearer|basic)\s+\S", re.IGNORECASE)


def check_secrets(definition: Definition, body: Mapping[str, Any], location: Location, problems: Problems) -> None:
    """Report values that must not be stored."""
    reported: set[str] = set()

    def refuse(field: str, why: str, name: str) -> None:
        if field not in reported:
            reported.add(field)
            problems.error(
                location.at(field=field),
                f"{why} It would be stored and shown in plain text. Store it as a secret and write {{secret.{name}}}.",
            )

    for field, name, value in _credentials(definition):
        if is_wrong_reference(value):
            problems.error(
                location.at(field=field),
                "This is not a valid reference. Write {secret.NAME}, with a name of A-Z, 0-9 and _.",
            )
            reported.add(field)
            continue
        why = plain_credential(name, value)
        if why is not None:
            refuse(field, why, secret_name(name))
    for field, name in _in_url(definition):
        refuse(field, f'The URL contains a credential ("{name}").', secret_name(name))
    for field, value in _texts(body):
        if _PLAIN.search(value):
            refuse(field, "This contains a credential.", "NAME")


def is_wrong_reference(value: str) -> bool:
    """Return whether a value looks like a reference to a secret but is not valid."""
    return _ALMOST.search(value) is not None and SECRET.search(value) is None


def plain_credential(name: str, value: str) -> str | None:
    """Return why the value of a header or variable must be a reference to a secret; None if it may be stored."""
    rest = SECRET.sub("", value).strip()
    if _SENSITIVE.search(name) and rest and not (rest != value.strip() and _SCHEME.match(rest)):
        return f'"{name}" has a value that looks like a credential.'
    if (_BEARER.match(value) and SECRET.search(value) is None) or _PLAIN.search(value):
        return "This looks like a credential."
    return None


def secret_names(definition: Definition) -> set[str]:
    """Return the names of the secrets to which a definition refers."""
    return {name for _, _, value in _credentials(definition) for name in SECRET.findall(value)} | (
        set(SECRET.findall(definition.url)) if isinstance(definition, (Tool, McpServer)) and definition.url else set()
    )


def secret_name(name: str) -> str:
    """Return a suitable name for the secret of a header or variable."""
    text = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").upper()
    return text if text and not text[0].isdigit() else f"SECRET_{text}".rstrip("_")


def is_sensitive(name: str) -> bool:
    """Return whether a header, variable or parameter of this name contains a credential."""
    return _SENSITIVE.search(name) is not None


def _credentials(definition: Definition) -> Iterator[tuple[str, str, str]]:
    """Yield field, name and value of everything whose location may contain a credential."""
    match definition:
        case Tool():
            for name, value in definition.headers.items():
                yield f"headers.{name}", name, value
        case McpServer():
            for name, value in definition.headers.items():
                yield f"headers.{name}", name, value
            for name, value in definition.env.items():
                yield f"env.{name}", name, value
            if definition.token is not None:
                yield "token", "token", definition.token
            for position, value in enumerate(definition.args):
                name, separator, rest = value.partition("=")
                option = definition.args[position - 1] if position else ""
                if separator and name.startswith("-"):
                    yield f"args[{position}]", name.lstrip("-"), rest
                elif "=" not in option and _SENSITIVE.search(option):
                    yield f"args[{position}]", option.lstrip("-"), value
        case _:
            return


def _in_url(definition: Definition) -> Iterator[tuple[str, str]]:
    if not isinstance(definition, (Tool, McpServer)) or not definition.url:
        return
    try:
        parts = urlsplit(SECRET.sub("", definition.url))
        if parts.password:
            yield "url", "password"
        for name, value in parse_qsl(parts.query):
            # {field} is replaced when the tool is called.
            if _SENSITIVE.search(name) and not value.startswith("{"):
                yield "url", name
    except ValueError:
        return


def _texts(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    waiting: list[tuple[str, Any]] = [(key, value) for key, value in body.items()]
    while waiting:
        field, value = waiting.pop()
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, dict):
            waiting += ((f"{field}.{key}", inner) for key, inner in cast("dict[str, Any]", value).items())
        elif isinstance(value, list):
            waiting += ((f"{field}[{at}]", inner) for at, inner in enumerate(cast("list[Any]", value)))
