"""What definitions refer to and the database does not have: secrets that nobody has set yet."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.definitions.checks.references import ParsedDefinition
from runlane.definitions.problem import Problem, Severity
from runlane.definitions.secret_references import secret_names
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.store.access.secrets import stored_names
from runlane.store.sql.database import Database


async def missing_secrets(database: Database, tenant: str, given: Sequence[ParsedDefinition]) -> list[Problem]:
    """A warning for each secret that is missing. The definitions are good all the same: it may be set later."""
    wanted = {parsed.place: secret_names(parsed.definition) for parsed in given}
    if not any(wanted.values()):
        return []
    present = await stored_names(database, tenant)
    where = "" if tenant == DEFAULT_TENANT else f" --tenant {tenant}"
    return [
        Problem(
            Severity.WARNING,
            place,
            f"The secret {name} is not set, and what needs it fails until it is. Set it: "
            f"runlane secrets set {name}{where}",
        )
        for place, names in wanted.items()
        for name in sorted(names - present)
    ]
