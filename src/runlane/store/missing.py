"""What definitions refer to and the database does not have: secrets that nobody has set yet."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.definitions.check import Parsed
from runlane.definitions.problem import Problem, Severity
from runlane.definitions.secrets import secret_names
from runlane.model.tenant import DEFAULT_TENANT
from runlane.store.database import Database
from runlane.store.secrets import stored_names


async def missing_secrets(database: Database, tenant: str, given: Sequence[Parsed]) -> list[Problem]:
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
