"""Map errors of a provider to failure codes, by type and not by wording.

Messages are stored in events and tables that tenants read. They contain the provider's message, truncated, without
secrets of the run and without text that looks like a key. A provider that rejects the operator's key may repeat the
key, so that message is only logged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from runlane.domain.retry_after import retry_after_seconds
from runlane.llm.models import ModelFailed
from runlane.redaction import LOGS, REDACTED, Redactor

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError

log = structlog.get_logger(__name__)

_SHOWN: Final = 300
_LOGGED: Final = 2000
_MAX_WAIT_SECONDS: Final = 3600.0
# Text that looks like a key, whole or partly masked, because providers often repeat keys.
_KEY: Final = re.compile(r"\b(?:sk|pk|rk|key|api|xai|gsk|AIza)[-_*][^\s\"',;]{6,}|\bAIza[^\s\"',;]{6,}|Bearer\s+\S+")
_REFUSALS: Final = frozenset({"content_filter", "content_policy_violation", "moderation_blocked"})


def failure_of(error: Exception, model: str, redactor: Redactor, *, own_key: bool) -> ModelFailed:
    """Return the failure for an error of a provider, its SDK or the network.

    `own_key` means that the key is the tenant's.
    """
    import httpx2
    from pydantic_ai import exceptions as known

    match error:
        case known.ModelAPIError():
            return _of_api(error, model, redactor, own_key=own_key)
        case known.ContentFilterError():
            return ModelFailed("content_refused", f"{model} refused to answer.")
        case known.UnexpectedModelBehavior():
            reason = shortened(error.message, redactor)
            return ModelFailed("bad_answer", f"{model} sent an answer that cannot be read: {reason}", retryable=True)
        case known.UserError():
            return ModelFailed(
                "invalid_request", f"The request to {model} is invalid: {shortened(error.message, redactor)}"
            )
        case TimeoutError() | httpx2.TimeoutException():
            return _timed_out(model)
        case httpx2.TransportError():
            return _unreachable(model)
        case _:
            # The text of the error is not shown because it may contain any data.
            return ModelFailed(
                "bad_answer", f"{model} sent an answer that cannot be read ({type(error).__name__}).", retryable=True
            )


def broken_off(model: str) -> ModelFailed:
    """Return the failure for a stream that ended before the answer was complete."""
    return ModelFailed("model_unreachable", f"The answer of {model} broke off.", retryable=True)


def shortened(text: str, redactor: Redactor) -> str:
    """Return a provider's message on one line, truncated, and without text that may be a key."""
    # The text is redacted before it is truncated, because a truncated secret would not be recognized.
    text = _KEY.sub(REDACTED, " ".join(redactor.clean(text).split()))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _of_api(error: ModelAPIError, model: str, redactor: Redactor, *, own_key: bool) -> ModelFailed:
    from pydantic_ai import exceptions as known

    reason = _reason(error, redactor)
    wait = error.retry_after
    if wait is None and isinstance(error, known.ModelHTTPError) and error.headers:
        wait = retry_after_seconds(error.headers.get("retry-after"))
    if wait is not None:
        wait = min(max(wait, 0.0), _MAX_WAIT_SECONDS)
    match error:
        case known.ModelRateLimitError():
            return ModelFailed(
                "rate_limited",
                f"{model}: the provider's limit of requests or tokens is reached{reason}",
                retryable=True,
                throttled=True,
                retry_after_seconds=wait,
            )
        case known.ModelQuotaExceededError():
            return ModelFailed("quota_exceeded", f"{model}: the account's quota or credit is used up{reason}")
        case known.ModelUnavailableError():
            return ModelFailed(
                "overloaded",
                f"{model}: the provider is overloaded or unavailable{reason}",
                retryable=True,
                throttled=True,
                retry_after_seconds=wait,
            )
        case known.ModelServerError():
            return ModelFailed(
                "model_error", f"{model}: the provider failed{reason}", retryable=True, retry_after_seconds=wait
            )
        case known.ModelTimeoutError():
            return _unreachable(model) if error.phase in {"pool", "connect"} else _timed_out(model)
        case known.ModelRequestTimeout():
            return _timed_out(model)
        case known.ModelConnectionError():
            return _unreachable(model) if error.phase != "read" else broken_off(model)
        case known.ModelContextWindowExceededError():
            return ModelFailed("context_too_long", f"The conversation is too long for {model}{reason}")
        case known.ModelAuthenticationError():
            return _key_refused(error, model, own_key=own_key)
        case known.ModelNotFoundError():
            return ModelFailed("unknown_model", f"The provider has no model {model} for this key{reason}")
        case known.ModelHTTPError() if error.status_code in {401, 403} and not _is_refusal(error):
            return _key_refused(error, model, own_key=own_key)
        case known.ModelHTTPError():
            return _of_status(error.status_code, error, model, reason)
        case known.ModelRequestRejectedError():
            return _refused(error, model, reason)
        case _ if isinstance(error.__cause__, ValueError) or not error.in_stream:
            return ModelFailed("bad_answer", f"{model} sent an answer that cannot be read.", retryable=True)
        case _:
            return ModelFailed("model_error", f"{model}: the provider failed{reason}", retryable=True)


def _key_refused(error: ModelAPIError, model: str, *, own_key: bool) -> ModelFailed:
    # The provider's message is omitted because it may repeat a part of the key.
    if own_key:
        return ModelFailed("not_authorized", f"The provider does not accept the key for {model}.")
    # The text is redacted before it is truncated, because a truncated key would not be recognized.
    log.warning("provider_refuses_key", model=model, response=LOGS.clean(str(error.body))[:_LOGGED])
    return ModelFailed(
        "not_authorized",
        f"The provider does not accept this server's key for {model}. Its response is in the server's log.",
    )


def _of_status(status: int, error: ModelAPIError, model: str, reason: str) -> ModelFailed:
    if status == 413:
        return ModelFailed("context_too_long", f"The conversation is too long for {model}{reason}")
    if status == 408:
        return _timed_out(model)
    if status >= 500 or status in {409, 425}:
        return ModelFailed("model_error", f"{model}: the provider failed (status {status}){reason}", retryable=True)
    return _refused(error, model, reason)


def _refused(error: ModelAPIError, model: str, reason: str) -> ModelFailed:
    if _is_refusal(error):
        return ModelFailed("content_refused", f"{model} refused to answer{reason}")
    return ModelFailed("invalid_request", f"{model} does not accept this request{reason}")


def _is_refusal(error: ModelAPIError) -> bool:
    return error.provider_error_code in _REFUSALS or error.provider_error_type in _REFUSALS


def _timed_out(model: str) -> ModelFailed:
    return ModelFailed("model_timeout", f"{model} did not answer in time.", retryable=True)


def _unreachable(model: str) -> ModelFailed:
    return ModelFailed("model_unreachable", f"The provider of {model} cannot be reached.", retryable=True)


def _reason(error: ModelAPIError, redactor: Redactor) -> str:
    """Return the provider's message as the end of a sentence."""
    body: Any = error.body
    for _ in range(2):
        if isinstance(body, dict):
            inner = cast("dict[str, Any]", body)
            body = inner.get("error") or inner.get("message")
    text = shortened(body, redactor) if isinstance(body, str) else ""
    return f": {text}" if text else "."
