"""What all tables are collected in."""

from __future__ import annotations

from sqlalchemy import MetaData

metadata = MetaData()
