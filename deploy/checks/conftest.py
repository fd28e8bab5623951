"""The fixtures of the suite, for the checks with real tools."""

from __future__ import annotations

from tests.conftest import *  # noqa: F403 - fixtures
from tests.conftest import pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]
