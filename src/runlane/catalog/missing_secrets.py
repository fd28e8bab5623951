"""Secrets that definitions refer to and that are not set."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.definitions.checks.references import ParsedDefinition
from runlane.definitions.problem import Problem, Severity
from runlane.definitions.secret_references import secret_names
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.store.access.secrets import stored_names
from runlane.store.sql.database import Database


async def missing_secrets(database: Database, tenant: str, given: Sequence[ParsedDefinition]) -> list[Problem]:
    """Return a warning for each missing secret. It is not an error, because the secret may be set later."""
    references = {parsed.location: secret_names(parsed.definition) for parsed in given}
    if not any(references.values()):
        return []
    present = await stored_names(database, tenant)
    where = "" if tenant == DEFAULT_TENANT else f" --tenant {tenant}"
    return [
        Problem(
            Severity.WARNING,
            location,
            f"The secret {name} is not set; calls that need it fail. Set it: runlane secrets set {name}{where}",
        )
        for location, names in references.items()
        for name in sorted(names - present)
    ]
