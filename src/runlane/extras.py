"""Optional packages: an import error names the extra that installs the missing package."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from runlane.errors import MissingExtra

# The packages of each extra, as they are imported.
PACKAGES: Final = {
    "postgres": ("asyncpg",),
    "redis": ("redis",),
    "otel": ("opentelemetry.exporter", "opentelemetry.sdk"),
    "openai": ("openai", "pydantic_ai"),
    "anthropic": ("anthropic", "pydantic_ai"),
    "google": ("google", "pydantic_ai"),
    "langgraph": ("langgraph", "langchain_core"),
}


@contextmanager
def requires_extra(extra: str, purpose: str) -> Generator[None]:
    """Raise MissingExtra if an import in the block fails because a package of the extra is not installed."""
    try:
        yield
    except ImportError as error:
        # Some packages wrap the error of a package that they need.
        if any(_is_missing(one, package) for one in (error, error.__cause__) for package in PACKAGES[extra]):
            raise MissingExtra(purpose, extra) from None
        raise


def _is_missing(error: BaseException | None, package: str) -> bool:
    """Return whether the import of this package failed."""
    return f"{getattr(error, 'name', None)}.".startswith(f"{package}.")
