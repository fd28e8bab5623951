"""Every error Runlane raises, as one tree.

RunlaneError
├── InvalidRequest            the caller's input cannot be accepted; nothing was stored
│   ├── UnknownTask           no such task in this app
│   ├── UnknownLane           no such lane
│   ├── InvalidInput          arguments do not fit the task's signature, or are not JSON
│   ├── InputTooLarge         over the size limit
│   ├── InvalidDefinitions    definitions have errors; each is told with its place and cure
│   ├── UnknownDefinition     no such orchestration, agent, tool or MCP server
│   ├── UrlTemplateError      a tool's URL or header is wrong, or its arguments do not fill it
│   └── TemplateError         a text with placeholders cannot be filled
│       ├── UnknownPlaceholder    the state has nothing for it
│       ├── InvalidPlaceholder    it is written in a way that means nothing
│       └── TemplateTooLarge      filled, it is too long
├── IdempotencyConflict       the key was used before with another body
├── RunNotFound
├── NotFound                  no such tenant, key, role or secret
├── UnknownSession            no such chat session
├── WrongState                the run is not in a state that allows this
├── Conflict                  what is there already forbids this
├── Unauthorized              no key, or one that is unknown, expired or revoked
├── Forbidden                 the key's role does not allow this
├── RateLimited               the tenant posts faster than its rate; nothing was stored
│   └── QueueLimited          the tenant has as many open runs as it may have
├── Unavailable               the database cannot be reached right now; try again
├── OutboundError             another server could not be called
│   ├── OutboundRefused       its address, scheme or redirects are not allowed
│   ├── OutboundTimeout       it took too long
│   ├── OutboundTooLarge      its answer is too large
│   └── OutboundUnreachable   it cannot be reached, or does not speak HTTP
├── UnexpectedAnswer          what answered a client is no Runlane server
├── SecretUnreadable          a stored secret cannot be decrypted
├── SecretQuotaExceeded       the tenant has as many secrets, or bytes of them, as it may have
├── TooManySecrets            a run has used more secrets than can be kept out of what it says
├── StorageRefused            the database refuses to store this; trying again will not help
├── ConfigurationError        the process cannot start like this
│   ├── DuplicateTask
│   ├── AppNotFound           the app path does not import
│   ├── InvalidSettings
│   ├── NoSecretKey           there is no key to keep secrets with
│   ├── SchemaOutdated        the database is older than the code
│   └── SchemaTooNew          the database is newer than the code
├── Fail                      raised by a task: end the run, no more attempts
└── Retry                     raised by a task: put the run back without counting a failure
Interrupted(BaseException)    raised inside a task by the worker; not for user code to catch
├── RunCancelled
└── LeaseLost                 another worker owns the run now

Each class has a stable code and the HTTP status an API answers with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import ClassVar, NamedTuple


class RunlaneError(Exception):
    """Base of every error a caller may want to catch."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500

    @property
    def public_message(self) -> str:
        """The message for callers over HTTP, without anything about the server."""
        return str(self)


class InvalidRequest(RunlaneError):
    """What was asked cannot be accepted. Nothing was stored."""

    code = "invalid_request"
    http_status = 422


class UnknownTask(InvalidRequest):
    """No task of this name is registered."""

    code = "unknown_task"
    http_status = 404

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f'No task "{name}" is registered{nearest(name, names)}. '
            f"{_listing('Registered', names)} Define it with @app.task in the module that you pass to "
            "runlane worker."
        )


class UnknownLane(InvalidRequest):
    """No lane of this name exists."""

    code = "unknown_lane"
    http_status = 404

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f'No lane "{name}" exists{nearest(name, names)}. {_listing("Lanes", names)} '
            "Name it in @app.task(lane=...) or create it: runlane lanes set NAME --create"
        )


class InvalidInput(InvalidRequest):
    """The arguments do not fit the task, or an answer does not fit the question; `fields` then names what does not."""

    code = "invalid_input"
    fields: Mapping[str, str] = MappingProxyType({})

    def __init__(self, message: str, fields: Mapping[str, str] | None = None) -> None:
        if fields is not None:
            self.fields = fields
        super().__init__(message)


class InputTooLarge(InvalidRequest):
    """The input is over the size limit."""

    code = "input_too_large"
    http_status = 413


class InvalidDefinitions(InvalidRequest):
    """Definitions have errors. `problems` has each as (place, message); nothing was stored."""

    code = "invalid_definitions"

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        self.problems = list(problems)
        told = "; ".join(f"{place}: {message}" for place, message in self.problems[:5])
        more = len(self.problems) - 5
        super().__init__(f"The definitions have errors: {told}{f'; and {more} more' if more > 0 else ''}")


class UnknownDefinition(InvalidRequest):
    """No orchestration, agent, tool or MCP server of this name, or not this version of it."""

    code = "unknown_definition"
    http_status = 404

    def __init__(self, kind: str, name: str, known: Iterable[str], version: str | None = None) -> None:
        names = sorted(known)
        what = kind.replace("mcp_server", "MCP server")
        if version is not None:
            path = f"/api/v2/{kind.replace('_', '-')}s/{name}/versions"
            super().__init__(f'The {what} "{name}" has no version "{version}". See: GET {path}')
            return
        super().__init__(
            f'No {what} "{name}" is known{nearest(name, names)}. {_listing("Known", names)} '
            "Bring it from its folder: runlane sync --dir definitions"
        )


class UrlTemplateError(InvalidRequest):
    """A URL or a header of a tool is written wrongly, or its arguments do not fill it."""

    code = "invalid_url"


class TemplateError(InvalidRequest):
    """A text with placeholders cannot be filled."""

    code = "template_error"


class UnknownPlaceholder(TemplateError):
    """Nothing fills a placeholder. `path` is what it refers to, `missing` the part of it that is not there."""

    code = "unknown_placeholder"

    def __init__(self, path: str, missing: str, within: str, known: Iterable[str]) -> None:
        names = sorted(known)
        self.path = path
        self.missing = missing
        self.known = names
        there = f" {_listing('There is', names)}" if names else ""
        super().__init__(
            f'Nothing fills the placeholder {{state.{path}}}: {within} has no "{missing}"{nearest(missing, names)}.'
            f"{there} Correct the name, or give the key a value first: by an earlier step's output_key, a default in "
            "state_schema, or the run's input."
        )


class InvalidPlaceholder(TemplateError):
    """Something looks like a placeholder and is none."""

    code = "invalid_placeholder"

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(
            f"{text!r} is no placeholder. Write {{state.key}} or {{{{key}}}}, with dots for parts of a value, as in "
            "{state.items.0.title}; put a backslash before it if it is meant as text."
        )


class TemplateTooLarge(TemplateError):
    """A template is too large to be filled, or becomes so."""

    code = "template_too_large"


class IdempotencyConflict(RunlaneError):
    """The idempotency key belongs to another request."""

    code = "idempotency_conflict"
    http_status = 409

    def __init__(self, key: str, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f'The idempotency key "{key}" was used before for run {run_id} with another body. '
            "Send the same body to get that run again, or use a new key."
        )


class RunNotFound(RunlaneError):
    """No run of this id is kept."""

    code = "run_not_found"
    http_status = 404

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f'No run "{run_id}" is kept here. Check the id, RUNLANE_DATABASE_URL and the retention time.')

    @property
    def public_message(self) -> str:
        return f'No run "{self.run_id}" is kept here. Check the id and the retention time.'


class NotFound(RunlaneError):
    """No tenant, key, role or secret of this name exists, or none that the caller may see."""

    code = "not_found"
    http_status = 404


class UnknownSession(RunlaneError):
    """No chat session of this id is kept, or none that the caller may see."""

    code = "session_not_found"
    http_status = 404

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f'No chat session "{session_id}" is kept here. A first message without session_id begins a new one.'
        )


class WrongState(RunlaneError):
    """The run's state does not allow what was asked."""

    code = "wrong_state"
    http_status = 409


class Conflict(RunlaneError):
    """Something that exists already forbids what was asked."""

    code = "conflict"
    http_status = 409


class Unauthorized(RunlaneError):
    """Who asks is not known. The answer never says why, so that nobody learns which keys exist."""

    code = "unauthorized"
    http_status = 401

    def __init__(self) -> None:
        super().__init__(
            "The API key is missing, unknown, expired or revoked. Send one: Authorization: Bearer sk-rl-... "
            "(runlane keys create NAME --role ROLE makes one)."
        )


class Forbidden(RunlaneError):
    """Who asks is known and may not do this."""

    code = "forbidden"
    http_status = 403


class RateQuota(NamedTuple):
    """A tenant's rate: how many runs it may start at once, how many of them are left, and when all are again."""

    limit: int
    remaining: int
    reset_seconds: float


class RateLimited(RunlaneError):
    """A limit of the tenant is reached; nothing was stored. `limit` says which: rate, queue or concurrency."""

    quota: RateQuota | None = None

    code = "rate_limited"
    http_status = 429
    limit: ClassVar[str] = "rate"

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class QueueLimited(RateLimited):
    """The tenant has as many open runs as it may have."""

    code = "queue_limited"
    limit = "queue"


class Unavailable(RunlaneError):
    """The database cannot be reached. What was asked may be asked again."""

    code = "unavailable"
    http_status = 503

    @property
    def public_message(self) -> str:
        return "The database cannot be used right now. Try again later."


class OutboundError(RunlaneError):
    """A server elsewhere could not be called. The message names it by scheme, host and port, and nothing else of the
    request, since any other part of that may be a secret. `sent` is False if certainly nothing was sent."""

    code = "outbound_error"
    http_status = 502
    sent: bool = True


class OutboundRefused(OutboundError):
    """Calling it is not allowed: not over HTTP, not a public address, or too many redirects."""

    code = "outbound_refused"


class OutboundTimeout(OutboundError):
    """It did not answer in time."""

    code = "outbound_timeout"


class OutboundTooLarge(OutboundError):
    """Its answer is larger than allowed."""

    code = "outbound_too_large"


class OutboundUnreachable(OutboundError):
    """No connection could be made, it broke, or what came is no answer."""

    code = "outbound_unreachable"


class UnexpectedAnswer(RunlaneError):
    """Something answered a client that is no Runlane server, or not of this version."""

    code = "unexpected_answer"
    http_status = 502


class SecretUnreadable(RunlaneError):
    """A stored secret cannot be decrypted: its key is not here, or its row was changed by somebody else."""

    code = "secret_unreadable"
    http_status = 409


class SecretQuotaExceeded(RunlaneError):
    """The tenant has as many secrets, or bytes of them, as it may have."""

    code = "secret_quota_exceeded"
    http_status = 409


class TooManySecrets(RunlaneError):
    """One attempt of a run has used more secrets than can be kept out of what it stores and says."""

    code = "too_many_secrets"
    http_status = 409

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"This run has used secrets of more than {max_bytes} bytes, counted with their encodings. Use fewer or "
            "shorter secrets in one run, or divide the work among several runs."
        )


class StorageRefused(RunlaneError):
    """The database refuses to store this, alone and again."""

    code = "refused"


class ConfigurationError(RunlaneError):
    """The process cannot start like this."""

    code = "configuration"


class DuplicateTask(ConfigurationError):
    """Two functions claim one task name."""

    code = "duplicate_task"

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(
            f'The task name "{name}" is taken by {first}; {second} cannot use it too. Give one of them another name.'
        )


class AppNotFound(ConfigurationError):
    """The app path does not lead to an App."""

    code = "app_not_found"


class InvalidSettings(ConfigurationError):
    """A setting is missing, malformed or contradicts another one."""

    code = "invalid_settings"


class NoSecretKey(ConfigurationError):
    """There is no key to encrypt secrets with."""

    code = "no_secret_key"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            "There is no key to keep secrets with. Make one: runlane secrets new-key. Give it to every server and "
            "worker as RUNLANE_SECRET_KEY, or in a file that RUNLANE_SECRET_KEY_FILE names, and keep a copy elsewhere."
        )


class SchemaOutdated(ConfigurationError):
    """The database's schema is older than this code."""

    code = "schema_outdated"


class SchemaTooNew(ConfigurationError):
    """The database's schema is newer than this code."""

    code = "schema_too_new"


class Fail(RunlaneError):
    """Raised by a task to end its run as failed, without more attempts."""

    code = "failed"


class Retry(RunlaneError):
    """Raised by a task to put its run back. It counts as no failure."""

    code = "retry"

    def __init__(self, after_seconds: float = 0.0, reason: str = "") -> None:
        if not 0 <= after_seconds <= 366 * 86400:
            raise ValueError(f"Retry(after_seconds={after_seconds!r}) must be between 0 and a year, in seconds.")
        self.after_seconds = after_seconds
        self.reason = reason
        super().__init__(reason or f"retry after {after_seconds:g} s")


class Interrupted(BaseException):
    """The worker stops a task. Not an Exception, so that `except Exception` cannot swallow it."""


class RunCancelled(Interrupted):
    """Somebody cancelled the run."""


class LeaseLost(Interrupted):
    """The run belongs to another attempt now; nothing this one writes will be kept."""


def nearest(name: str, known: Iterable[str]) -> str:
    """' (did you mean "x"?)' or nothing."""
    close = get_close_matches(name, list(known), n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def _listing(label: str, names: list[str]) -> str:
    if not names:
        return f"{label}: none."
    shown = ", ".join(names[:10])
    return f"{label}: {shown}{', …' if len(names) > 10 else ''}."
