"""Clicks on buttons in Slack: verify the signature of the raw body, then return the user and the button's token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import orjson

from runlane.access.webhook_signatures import HookRequest, verify
from runlane.domain.text import clean_text
from runlane.domain.webhook_source import SourceOptions, Verifier
from runlane.errors import InvalidRequest

_REPLY_HOST: Final = "hooks.slack.com"
_MAX_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class SlackClick:
    """One click. `reply_url` accepts messages to the channel for half an hour; None without a valid URL of Slack."""

    user_id: str
    user_name: str
    token: str
    reply_url: str | None


def read_click(secret: str, request: HookRequest, now_seconds: float) -> SlackClick:
    """Return the click in a request. Raise SignatureRejected, or InvalidRequest if it is not a click on a button."""
    verify(Verifier.SLACK, secret, SourceOptions(), request, now_seconds)
    payload = _payload(request.body)
    user, actions = _table(payload.get("user")), payload.get("actions")
    pressed = cast("list[Any]", actions) if isinstance(actions, list) else []
    token = _table(pressed[0]).get("value") if len(pressed) == 1 else None
    user_id = user.get("id")
    if payload.get("type") != "block_actions" or not isinstance(token, str) or not isinstance(user_id, str):
        raise InvalidRequest("The request is not a click on one button with a value.")
    name = user.get("username") or user.get("name")
    shown = clean_text(name, _MAX_NAME) if isinstance(name, str) and name else user_id
    return SlackClick(user_id, shown, token, _reply_url(payload.get("response_url")))


def _payload(body: bytes) -> dict[str, Any]:
    try:
        (text,) = parse_qs(body.decode(), strict_parsing=True, max_num_fields=10)["payload"]
        return _table(orjson.loads(text))
    except (ValueError, KeyError):
        raise InvalidRequest("The body must be a form with one field `payload` that contains JSON.") from None


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _reply_url(value: Any) -> str | None:
    """Return the URL for replies if it is a URL of Slack.

    Any other URL would make this server call an arbitrary host.
    """
    if not isinstance(value, str) or len(value) > 1000:
        return None
    try:
        parts = urlsplit(value)
        own = (parts.scheme, parts.netloc) == ("https", _REPLY_HOST)
    except ValueError:
        return None
    return value if own else None
