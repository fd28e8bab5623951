"""Errors of A2A: codes of JSON-RPC, with the message of the error that caused them."""

from __future__ import annotations

from typing import Any, Final

from runlane.api.openai.errors import ParameterRefused
from runlane.errors import (
    InvalidInput,
    InvalidRequest,
    NotFound,
    RunlaneError,
    RunNotFound,
    UnknownSession,
    WrongState,
)

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
TASK_NOT_FOUND: Final = -32001
TASK_NOT_CANCELABLE: Final = -32002
PUSH_NOT_SUPPORTED: Final = -32003
UNSUPPORTED_OPERATION: Final = -32004
CONTENT_TYPE_NOT_SUPPORTED: Final = -32005
NO_EXTENDED_CARD: Final = -32007
VERSION_NOT_SUPPORTED: Final = -32009


class ProtocolRefusal(Exception):
    """A request that is refused with an error of the protocol."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_body(rpc_id: Any, code: int, message: str) -> dict[str, Any]:
    """Return the response to a refused request."""
    return {"jsonrpc": "2.0", "id": rpc_id, "error": {"code": code, "message": message}}


def code_of(error: RunlaneError) -> int | None:
    """Return the JSON-RPC code of an error; None if the error is returned as an HTTP status instead."""
    match error:
        case RunNotFound() | UnknownSession():
            return TASK_NOT_FOUND
        case WrongState():
            return UNSUPPORTED_OPERATION
        case InvalidRequest() | InvalidInput() | ParameterRefused():
            return INVALID_PARAMS
        case NotFound():
            return TASK_NOT_FOUND
        case _:
            return None
