"""Messages of requests: the last message is for the agent, earlier messages are the conversation of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from runlane.api.openai.errors import InvalidValue, ParameterRefused
from runlane.domain.conversation import EarlierMessage, Role
from runlane.domain.text import check_text
from runlane.errors import InvalidInput

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
# Clients send these fields back as they received them. They do not belong to the text.
_RETURNED: Final = frozenset({"role", "content", "type", "id", "status", "name", "refusal", "annotations", "phase"})


class ParsedMessages(NamedTuple):
    """The message for the agent, and the conversation before it."""

    message: str
    earlier: tuple[EarlierMessage, ...] = ()

    @property
    def last_of_assistant(self) -> str:
        """Return the assistant's message directly before the user's message; empty if there is none."""
        spoken = [message for message in self.earlier if message.role != "system"]
        return spoken[-1].text if spoken and spoken[-1].role == "assistant" else ""


def parse_messages(items: Sequence[Mapping[str, Any]], param: str) -> ParsedMessages:
    """Parse messages; `param` is their parameter. The last message that is not a system message must be the user's."""
    parsed = [_message(item, f"{param}[{position}]") for position, item in enumerate(items)]
    spoken = [position for position, message in enumerate(parsed) if message.role != "system"]
    if not spoken or parsed[spoken[-1]].role != "user":
        raise InvalidValue(
            param, f"The last message in '{param}' must have the role user, because it is the message to the agent."
        )
    last = spoken[-1]
    if not parsed[last].text.strip():
        raise InvalidValue(f"{param}[{last}].content", "The message to the agent must not be empty.")
    earlier = (*parsed[:last], *parsed[last + 1 :])
    return ParsedMessages(parsed[last].text, tuple(message for message in earlier if message.text))


def _message(item: Mapping[str, Any], where: str) -> EarlierMessage:
    kind = item.get("type")
    if kind not in (None, "message"):
        raise ParameterRefused(where, f"{where} is of the type {str(kind)[:100]!r}. Only messages are supported.")
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(_ROLES)
        raise InvalidValue(f"{where}.role", f"'{where}.role' must be one of {known}, not {str(role)[:100]!r}.")
    for name, value in item.items():
        if name not in _RETURNED and value not in (None, [], {}):
            field = f"{where}.{name[:100]}"
            raise ParameterRefused(field, f"'{field}' is not supported. A message has a role and text.")
    return EarlierMessage(_ROLES[role], _text(item.get("content"), f"{where}.content"))


def checked_text(text: str, where: str) -> str:
    """Return the text. Raise InvalidValue if it cannot be stored unchanged."""
    try:
        return check_text(text, f"'{where}'", len(text)) if text else text
    except InvalidInput as error:
        raise InvalidValue(where, str(error)) from None


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return checked_text(content, where)
    if not isinstance(content, list):
        raise InvalidValue(where, f"'{where}' must be a string or a list of text parts.")
    texts: list[str] = []
    for position, part in enumerate(cast("list[Any]", content)):
        found = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        text = found.get("text")
        if found.get("type") not in _TEXT_PARTS or not isinstance(text, str):
            raise ParameterRefused(
                f"{where}[{position}]", f"'{where}[{position}]' is not text. Only text is supported."
            )
        texts.append(checked_text(text, where))
    return "".join(texts)
