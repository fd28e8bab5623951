"""Dead letters in groups with one fingerprint: how many, of which targets and versions, and on which days."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Integer, bindparam, cast, func, select

from runlane.domain.dead_letter import (
    GROUP_DAYS,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterSummary,
    GroupVersion,
)
from runlane.domain.quota import DAY_US
from runlane.store.failures.letters import MATCHING, OF_TENANT, LetterFilter, newest_letter
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_once
from runlane.store.sql.schema import dead_letters
from runlane.store.sql.statement import Row, Statement

MAX_GROUPS: Final = 200
_SHOWN_NAMES: Final = 10
_limit = bindparam("limit", type_=Integer())
_grouped = (
    select(
        dead_letters.c.fingerprint,
        func.count().label("count"),
        func.sum(dead_letters.c.times_died).label("times_died"),
        func.min(dead_letters.c.first_failed_at).label("first_failed_at"),
        func.max(dead_letters.c.died_at).label("last_died_at"),
    )
    .where(*MATCHING)
    .group_by(dead_letters.c.fingerprint)
    .order_by(func.count().desc(), func.max(dead_letters.c.died_at).desc(), dead_letters.c.fingerprint)
    .limit(_limit)
)
_GROUPS = Statement("group_dead_letters", _grouped, purpose="Count the dead letters of all tenants by fingerprint.")
_GROUPS_OF_TENANT = Statement(
    "group_tenant_dead_letters",
    _grouped.where(OF_TENANT),
    purpose="Count the dead letters of a tenant by fingerprint.",
)
_of_groups = (*MATCHING, member(dead_letters.c.fingerprint, "fingerprints"))
_names = (
    select(dead_letters.c.fingerprint, dead_letters.c.target, dead_letters.c.last_step).where(*_of_groups).distinct()
)
_NAMES = Statement("names_of_letter_groups", _names, purpose="Read targets and steps of groups of dead letters.")
_NAMES_OF_TENANT = Statement(
    "names_of_tenant_letter_groups",
    _names.where(OF_TENANT),
    purpose="Read targets and steps of a tenant's groups of dead letters.",
)
_versions = (
    select(
        dead_letters.c.fingerprint,
        dead_letters.c.version,
        func.count().label("count"),
        func.min(dead_letters.c.first_failed_at).label("first_failed_at"),
        func.max(dead_letters.c.died_at).label("last_died_at"),
    )
    .where(*_of_groups)
    .group_by(dead_letters.c.fingerprint, dead_letters.c.version)
    .order_by(func.max(dead_letters.c.died_at).desc())
)
_VERSIONS = Statement(
    "versions_of_letter_groups", _versions, purpose="Count groups of dead letters by the version of their definition."
)
_VERSIONS_OF_TENANT = Statement(
    "versions_of_tenant_letter_groups",
    _versions.where(OF_TENANT),
    purpose="Count a tenant's groups of dead letters by the version of their definition.",
)
_today = now_once() // lit(DAY_US)
_ago = cast(_today - dead_letters.c.died_at // lit(DAY_US), Integer).label("ago")
_days = (
    select(dead_letters.c.fingerprint, _ago, func.count().label("count"))
    .where(*_of_groups, dead_letters.c.died_at >= (_today - lit(GROUP_DAYS - 1)) * lit(DAY_US))
    .group_by(dead_letters.c.fingerprint, _ago)
)
_DAYS = Statement("days_of_letter_groups", _days, purpose="Count groups of dead letters by day.")
_DAYS_OF_TENANT = Statement(
    "days_of_tenant_letter_groups", _days.where(OF_TENANT), purpose="Count a tenant's groups of dead letters by day."
)


class _Details(NamedTuple):
    """The details of groups, by fingerprint."""

    targets: Mapping[str, Sequence[str]]
    steps: Mapping[str, Sequence[str]]
    versions: Mapping[str, Sequence[GroupVersion]]
    daily: Mapping[str, Sequence[int]]


async def group_letters(database: Database, wanted: LetterFilter, *, limit: int = 50) -> DeadLetterGroups:
    """Return the matching letters by fingerprint, the largest groups first."""
    everywhere = wanted.tenant is None

    async def work(session: Session) -> DeadLetterGroups:
        given = wanted.parameters(session)
        statement = _GROUPS if everywhere else _GROUPS_OF_TENANT
        rows = list(await session.fetch(statement, **given, limit=limit + 1))
        more, rows = len(rows) > limit, rows[:limit]
        details = await _details(session, wanted, [row["fingerprint"] for row in rows])
        groups = [_group(row, await newest_letter(session, wanted, row["fingerprint"]), details) for row in rows]
        return DeadLetterGroups(tuple(groups), more)

    return await database.transact(work)


async def _details(session: Session, wanted: LetterFilter, fingerprints: Sequence[str]) -> _Details:
    everywhere = wanted.tenant is None
    given = {**wanted.parameters(session), "fingerprints": session.texts(fingerprints)}
    names = await session.fetch(_NAMES if everywhere else _NAMES_OF_TENANT, **given)
    versions: dict[str, list[GroupVersion]] = defaultdict(list)
    for row in await session.fetch(_VERSIONS if everywhere else _VERSIONS_OF_TENANT, **given):
        version = GroupVersion(row["version"], row["count"], row["first_failed_at"], row["last_died_at"])
        versions[row["fingerprint"]].append(version)
    daily: dict[str, list[int]] = defaultdict(lambda: [0] * GROUP_DAYS)
    for row in await session.fetch(_DAYS if everywhere else _DAYS_OF_TENANT, **given):
        # A letter with a time after today, from a clock that is ahead, counts as one of today.
        daily[row["fingerprint"]][GROUP_DAYS - 1 - max(0, row["ago"])] += row["count"]
    return _Details(_collect(names, "target"), _collect(names, "last_step"), versions, daily)


def _collect(rows: Sequence[Row], column: str) -> dict[str, list[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row[column] is not None:
            found[row["fingerprint"]].add(row[column])
    return {fingerprint: sorted(names)[:_SHOWN_NAMES] for fingerprint, names in found.items()}


def _group(row: Row, sample: DeadLetterSummary, details: _Details) -> DeadLetterGroup:
    fingerprint = row["fingerprint"]
    return DeadLetterGroup(
        fingerprint,
        sample.code,
        row["count"],
        int(row["times_died"]),
        tuple(details.targets.get(fingerprint, ())),
        tuple(details.steps.get(fingerprint, ())),
        row["first_failed_at"],
        row["last_died_at"],
        sample,
        tuple(details.versions.get(fingerprint, ())[:_SHOWN_NAMES]),
        tuple(details.daily.get(fingerprint, [0] * GROUP_DAYS)),
    )
