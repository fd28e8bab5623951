"""The header Retry-After in all its forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from runlane.domain.retry_after import retry_after_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("2.5", 2.5),
        ("-3", 0.0),
        ("9999999999", 86_400.0),
        ("Fri, 01 Jan 1999 00:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("Thu, 01 Jan 1970 00:00:00 +99999999999999999", None),
        ("Thu,501 Jan 2020 00:00:8002903500", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_parsed_as_the_server_sends_it(text: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(text) == seconds


def test_a_date_is_as_far_as_it_is_from_now() -> None:
    at = datetime.now(UTC) + timedelta(seconds=3600)
    wait_seconds = retry_after_seconds(format_datetime(at, usegmt=True))
    assert wait_seconds is not None
    assert 3000 < wait_seconds <= 3600
