"""Errors of a validation, listed within a bound.

A request of some megabytes can have a million invalid fields. To list all of them takes seconds and gigabytes, so the
listing stops early, and errors beyond a number are only counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

MAX_LISTED: Final = 100
# Each error takes microseconds and a few hundred bytes when it is listed, even if only the first ones are shown.
MAX_COUNTED: Final = 5000


def listed_errors(error: ValidationError, most: int = MAX_LISTED) -> Sequence[ErrorDetails]:
    """Return the first errors; none if there are more than MAX_COUNTED."""
    return error.errors(include_url=False)[:most] if error.error_count() <= MAX_COUNTED else ()


def too_many(error: ValidationError) -> str:
    """Return the problem of a value with so many errors that none is listed."""
    return f"{error.error_count()} fields are invalid or unknown. Compare the value with its description."


def first_problem(error: ValidationError, whole: str) -> str:
    """Return the first error with its location, which is `whole` for the value itself."""
    for item in listed_errors(error, 1):
        where = ".".join(str(part) for part in item["loc"]) or whole
        return f"{where}: {item['msg'].removeprefix('Value error, ')}."
    return f"{whole}: {too_many(error)}"
