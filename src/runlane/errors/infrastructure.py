"""Failures of what a process depends on: database, other servers, secrets, its own configuration."""

from __future__ import annotations

from runlane.errors.base import RunlaneError

__all__ = [
    "AppNotFound",
    "ConfigurationError",
    "DuplicateGraph",
    "DuplicateTask",
    "GraphNotLoaded",
    "InvalidSettings",
    "MemoryFileBroken",
    "MemoryOwnerUnreachable",
    "MissingExtra",
    "NoSecretKey",
    "OutboundError",
    "OutboundRefused",
    "OutboundTimeout",
    "OutboundTooLarge",
    "OutboundUnreachable",
    "Paused",
    "SchemaOutdated",
    "SchemaTooNew",
    "SecretQuotaExceeded",
    "SecretUnreadable",
    "StorageFull",
    "StorageRefused",
    "TooManySecrets",
    "Unavailable",
    "UnexpectedAnswer",
]


class Unavailable(RunlaneError):
    """The database cannot be reached. The request may be sent again."""

    code = "unavailable"
    http_status = 503

    @property
    def public_message(self) -> str:
        return "The database is not available. Try again later."


class MemoryOwnerUnreachable(Unavailable):
    """The node that owns a memory did not answer in time. A change may be stored there."""

    code = "memory_owner_unreachable"

    def __init__(self, memory_id: str, owner: str) -> None:
        super().__init__(
            f'The node {owner}, which owns the memory "{memory_id}", did not answer in time. Retry; a change may be '
            "stored, so repeat it with the same Idempotency-Key."
        )

    @property
    def public_message(self) -> str:
        return str(self)


class StorageFull(RunlaneError):
    """The disk of a memory node is full. Nothing was stored."""

    code = "storage_full"
    http_status = 507


class Paused(RunlaneError):
    """The process only reads, because RUNLANE_PAUSED is set."""

    code = "paused"
    http_status = 503

    def __init__(self) -> None:
        super().__init__(
            "This process only reads, because RUNLANE_PAUSED is set. Unset it, and restart the process, when the "
            "database may be changed."
        )


class OutboundError(RunlaneError):
    """Another server could not be called. The message contains only its scheme, host and port, because every other part
    of the request may be a secret. `sent` is False if certainly nothing was sent."""

    code = "outbound_error"
    http_status = 502
    sent: bool = True


class OutboundRefused(OutboundError):
    """The call is not allowed: not HTTP, not a public address, or too many redirects."""

    code = "outbound_refused"


class OutboundTimeout(OutboundError):
    """The server did not answer in time."""

    code = "outbound_timeout"


class OutboundTooLarge(OutboundError):
    """The response is larger than allowed."""

    code = "outbound_too_large"


class OutboundUnreachable(OutboundError):
    """The connection failed or broke, or the response is not valid."""

    code = "outbound_unreachable"


class UnexpectedAnswer(RunlaneError):
    """A client received a response that is not from a Runlane server, or from one of another version."""

    code = "unexpected_answer"
    http_status = 502


class SecretUnreadable(RunlaneError):
    """A stored secret cannot be decrypted: its key is not configured, or its row was changed."""

    code = "secret_unreadable"
    http_status = 409


class SecretQuotaExceeded(RunlaneError):
    """The tenant has reached its limit of secrets, or of their bytes."""

    code = "secret_quota_exceeded"
    http_status = 409


class TooManySecrets(RunlaneError):
    """One attempt of a run has used more secrets than can be redacted in what it stores and publishes."""

    code = "too_many_secrets"
    http_status = 409

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"This run has used secrets of more than {max_bytes} bytes, counted with their encodings. Use fewer or "
            "shorter secrets in one run, or divide the work among several runs."
        )


class StorageRefused(RunlaneError):
    """The database rejects this value, even in a transaction of its own."""

    code = "refused"


class ConfigurationError(RunlaneError):
    """The process cannot start with this configuration."""

    code = "configuration"


class DuplicateTask(ConfigurationError):
    """Two functions have the same task name."""

    code = "duplicate_task"

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(
            f'The task name "{name}" is taken by {first}; {second} cannot use it too. Give one of them another name.'
        )


class DuplicateGraph(ConfigurationError):
    """Two graphs have the same id."""

    code = "duplicate_graph"

    def __init__(self, graph_id: str, first: str, second: str) -> None:
        super().__init__(
            f'The graph id "{graph_id}" is taken by {first}; {second} cannot use it too. Give one of them another id.'
        )


class GraphNotLoaded(ConfigurationError):
    """A graph cannot be loaded: its module does not import, or its export is not a graph."""

    code = "graph_not_loaded"


class AppNotFound(ConfigurationError):
    """The app path does not resolve to an App."""

    code = "app_not_found"


class InvalidSettings(ConfigurationError):
    """A setting is missing, malformed or contradicts another one."""

    code = "invalid_settings"


class MemoryFileBroken(ConfigurationError):
    """The memory file is damaged and no database has a copy of it."""

    code = "memory_file_broken"


class NoSecretKey(ConfigurationError):
    """No encryption key for secrets is configured."""

    code = "no_secret_key"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            "No encryption key for secrets is configured. Create one: runlane secrets new-key. Give it to every server "
            "and worker as RUNLANE_SECRET_KEY, or in a file named by RUNLANE_SECRET_KEY_FILE, and keep a copy."
        )


class MissingExtra(ConfigurationError):
    """An optional package is not installed."""

    code = "missing_extra"

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs a package that is not installed. Install it: pip install 'runlane[{extra}]'")


class SchemaOutdated(ConfigurationError):
    """The database's schema is older than this code."""

    code = "schema_outdated"


class SchemaTooNew(ConfigurationError):
    """The database's schema is newer than this code."""

    code = "schema_too_new"
