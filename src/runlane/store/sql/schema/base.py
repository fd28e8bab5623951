"""The metadata of all tables."""

from __future__ import annotations

from sqlalchemy import MetaData

metadata = MetaData()
