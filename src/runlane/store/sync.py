"""Sync: definitions brought into the database, all of them or none.

They are checked together with what is stored already, outside of any transaction because that takes time. The
transaction then holds the tenant's lock and looks whether anything changed meanwhile; if so, all is checked anew. So
what is stored is always what was checked, and two who sync at once do it one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import FromClause, Text, bindparam, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.base import Executable

from runlane.definitions.bundle import Skipped
from runlane.definitions.environment import Environment
from runlane.definitions.load import Loaded, check_loaded
from runlane.definitions.problem import KIND_WORDS, Place, Problem, Severity, refuse
from runlane.definitions.reach import reach, uses
from runlane.definitions.scope import Scope, scope_of
from runlane.definitions.version import address, canonical, kind_of
from runlane.errors import Conflict, InvalidDefinitions
from runlane.model.definition import Definition, Kind, McpServer, Tool
from runlane.model.ids import lock_key
from runlane.store.audit import append_audit
from runlane.store.database import Database, Session
from runlane.store.definitions import load_all, pins_json
from runlane.store.expressions import now_us
from runlane.store.missing import missing_secrets
from runlane.store.schema import definition_versions, definitions
from runlane.store.statement import Statement
from runlane.store.tenants import FIND_TENANT, unknown_tenant

Change = Literal["added", "changed", "removed", "unchanged"]
Origin = Literal["sync", "import"]
# Others who sync at the same time make us check again; so many of them in a row are more than a coincidence.
_TRIES: Final = 8
_MAX_PINS: Final = 20_000
_AUDITED: Final = 200
_EXISTS: Final = "There is one of this name already."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one definition. `old` is the version that was current before."""

    kind: Kind
    id: str
    change: Change
    version: str | None
    old: str | None = None

    @property
    def key(self) -> str:
        """What pins call it."""
        return f"{self.kind}:{self.id}"

    def told(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "kind": self.kind,
            "id": self.id,
            "change": self.change,
            "version": self.version,
            "old_version": self.old,
        }


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync did, or with `dry_run` would do. `skipped` are those that a tolerant one did not take."""

    outcomes: Sequence[Outcome]
    warnings: Sequence[Problem]
    dry_run: bool
    skipped: Sequence[Skipped] = ()

    def of(self, change: Change) -> list[Outcome]:
        """The definitions that this happened to."""
        return [outcome for outcome in self.outcomes if outcome.change == change]

    @property
    def changes(self) -> bool:
        """Whether anything is different now."""
        return any(outcome.change != "unchanged" for outcome in self.outcomes)

    def told(self) -> dict[str, Any]:
        """As plain JSON."""
        changes: tuple[Change, ...] = ("added", "changed", "removed", "unchanged")
        return {
            "dry_run": self.dry_run,
            **{change: len(self.of(change)) for change in changes},
            "items": [outcome.told() for outcome in self.outcomes],
            "warnings": [problem.told() for problem in self.warnings],
        }


@dataclass(frozen=True, slots=True)
class _Row:
    version: str
    origin: str
    pins: str | None


_Rows = dict[tuple[Kind, str], _Row]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked for."""

    loaded: Loaded
    gone: Collection[tuple[Kind, str]]
    origin: Origin
    tasks: Collection[str] | None
    tolerant: bool
    environment: Environment | None


@dataclass(slots=True)
class _Plan:
    """What is to be written."""

    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    versions: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    put: list[tuple[str | None, ...]] = field(default_factory=list[tuple[str | None, ...]])
    touch: list[tuple[str | None, ...]] = field(default_factory=list[tuple[str | None, ...]])
    remove: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])


_CURRENT = Statement(
    "current_definitions",
    select(definitions.c.kind, definitions.c.id, definitions.c.version, definitions.c.origin, definitions.c.pins)
    .where(definitions.c.tenant == bindparam("tenant"), definitions.c.removed_at.is_(None))
    .order_by(definitions.c.kind, definitions.c.id),
)


def _keep_versions(batch: FromClause) -> Executable:
    return (
        insert(definition_versions)
        .from_select(
            ["tenant", "kind", "id", "version", "body", "created_at"],
            select(bindparam("tenant", type_=Text()), batch.c.kind, batch.c.id, batch.c.version, batch.c.body, now_us())
            .select_from(batch)
            .where(true()),
        )
        .on_conflict_do_nothing(index_elements=["tenant", "kind", "id", "version"])
    )


_KEEP_VERSIONS = Statement(
    "keep_definition_versions", _keep_versions, {"kind": Text(), "id": Text(), "version": Text(), "body": Text()}
)
_PUT_COLUMNS = ("kind", "id", "version", "name", "description", "origin", "pins")


def _put(batch: FromClause) -> Executable:
    statement = insert(definitions).from_select(
        ["tenant", *_PUT_COLUMNS, "created_at", "updated_at"],
        select(bindparam("tenant", type_=Text()), *(batch.c[name] for name in _PUT_COLUMNS), now_us(), now_us())
        .select_from(batch)
        .where(true()),
    )
    excluded = statement.excluded
    changed = {name: excluded[name] for name in (*_PUT_COLUMNS[2:], "updated_at")}
    return statement.on_conflict_do_update(
        index_elements=["tenant", "kind", "id"], set_={**changed, "removed_at": None}
    )


_PUT = Statement("put_definitions", _put, {name: Text() for name in _PUT_COLUMNS})


def _of_batch(batch: FromClause) -> Any:
    return (
        (definitions.c.tenant == bindparam("tenant"))
        & (definitions.c.kind == batch.c.kind)
        & (definitions.c.id == batch.c.id)
    )


_TOUCH = Statement(
    "touch_definitions",
    lambda batch: update(definitions).where(_of_batch(batch)).values(origin=batch.c.origin, pins=batch.c.pins),
    {"kind": Text(), "id": Text(), "origin": Text(), "pins": Text()},
)
_REMOVE = Statement(
    "remove_definitions",
    lambda batch: update(definitions).where(_of_batch(batch)).values(removed_at=now_us(), pins=None),
    {"kind": Text(), "id": Text()},
)


async def sync_definitions(
    database: Database,
    tenant: str,
    loaded: Loaded,
    *,
    actor: str,
    dry_run: bool = False,
    remove_missing: bool = False,
    origin: Origin = "sync",
    tasks: Collection[str] | None = None,
    tolerant: bool = False,
    keep_existing: bool = False,
    environment: Environment | None = None,
) -> SyncReport:
    """Bring parsed definitions into the database.

    `remove_missing` removes what an earlier sync brought and is not among them; what was imported stays. For bundles
    made elsewhere, `tolerant` skips what has errors and takes loose ends, which lead to something that is not there,
    as warnings; `keep_existing` skips what is there already. With an `environment`, what this installation does not
    have is a warning.
    """
    loaded.raise_errors()
    for _ in range(_TRIES):
        before, stored = await read_current(database, tenant)
        gone = _gone(loaded, before) if remove_missing else set[tuple[Kind, str]]()
        kept, skipped = _without(loaded, dict.fromkeys(before, _EXISTS) if keep_existing else {})
        wanted = _Wanted(kept, gone, origin, tasks, tolerant, environment)
        plan, warnings, broken = await asyncio.to_thread(_work_out, wanted, before, stored)
        brought = {(outcome.kind, outcome.id) for outcome in plan.outcomes}
        warnings += await missing_secrets(database, tenant, [item for item in kept.definitions if item.key in brought])
        report = SyncReport(plan.outcomes, warnings, dry_run, [*skipped, *broken])
        if dry_run or await _write(database, tenant, before, plan, report, actor, origin):
            return report
    raise Conflict(f'The definitions of tenant "{tenant}" keep changing while they are checked. Try again.')


async def read_current(database: Database, tenant: str) -> tuple[_Rows, list[Definition]]:
    """What is current of a tenant: rows by kind and id, and their definitions in the same order."""

    async def work(session: Session) -> tuple[_Rows, list[Definition]]:
        if not await session.fetch(FIND_TENANT, tenant=tenant):
            raise await unknown_tenant(session, tenant)
        rows = await _current(session, tenant)
        return rows, await load_all(session, tenant, [(*key, row.version) for key, row in rows.items()])

    return await database.transact(work)


async def _current(session: Session, tenant: str) -> _Rows:
    return {
        (row["kind"], row["id"]): _Row(row["version"], row["origin"], row["pins"])
        for row in await session.fetch(_CURRENT, tenant=tenant)
    }


def _gone(loaded: Loaded, before: _Rows) -> set[tuple[Kind, str]]:
    given = {parsed.key for parsed in loaded.definitions}
    return {key for key, row in before.items() if row.origin == "sync" and key not in given}


def _without(loaded: Loaded, reasons: Mapping[tuple[Kind, str], str]) -> tuple[Loaded, list[Skipped]]:
    kept = [parsed for parsed in loaded.definitions if parsed.key not in reasons]
    skipped = [Skipped(*parsed.key, reasons[parsed.key]) for parsed in loaded.definitions if parsed.key in reasons]
    return Loaded(kept, loaded.problems, loaded.broken), skipped


def _work_out(
    wanted: _Wanted, before: _Rows, stored: Sequence[Definition]
) -> tuple[_Plan, list[Problem], list[Skipped]]:
    loaded, skipped = wanted.loaded, list[Skipped]()
    keys = dict(zip(before, stored, strict=True))
    while True:
        given = {parsed.key for parsed in loaded.definitions}
        staying = [definition for key, definition in keys.items() if key not in wanted.gone and key not in given]
        told = check_loaded(loaded, staying, tasks=wanted.tasks, environment=wanted.environment)
        grave = [problem for problem in told.errors if not (problem.loose and wanted.tolerant)]
        if not (wanted.tolerant and grave):
            break
        # Skipping one can only leave loose ends, or end a circle, in the others; those are looked at again.
        reasons: dict[tuple[Kind, str], str] = {}
        for problem in grave:
            if problem.place.kind is not None and problem.place.id is not None:
                reasons.setdefault((problem.place.kind, problem.place.id), problem.brief)
        loaded, more = _without(loaded, reasons)
        if not more:
            break
        skipped += more
    refuse(grave)
    _refuse_used(staying, [keys[key] for key in wanted.gone], scope_of(stored))
    warnings = [Problem(Severity.WARNING, problem.place, problem.message) for problem in told.problems]
    scope = scope_of((*staying, *(parsed.definition for parsed in loaded.definitions)))
    return _plan(loaded, before, wanted.gone, staying, scope, wanted.origin), warnings, skipped


def _refuse_used(staying: Iterable[Definition], removed: Sequence[Definition], scope: Scope) -> None:
    keys = {(kind_of(definition), definition.id) for definition in removed}
    problems: list[tuple[str, str]] = []
    for user in staying if keys else ():
        for kind, name in sorted(uses(user, scope) & keys):
            problems.append(
                (
                    str(Place(kind=kind, id=name)),
                    f'It cannot be removed: {KIND_WORDS[kind_of(user)]} "{user.id}", which was imported, uses it.',
                )
            )
    if problems:
        raise InvalidDefinitions(problems)


def _plan(
    loaded: Loaded,
    before: _Rows,
    gone: Collection[tuple[Kind, str]],
    staying: Sequence[Definition],
    scope: Scope,
    origin: Origin,
) -> _Plan:
    plan = _Plan()
    contents = {parsed.key: canonical(parsed.definition) for parsed in loaded.definitions}
    versions: dict[tuple[Kind, str], str] = {key: row.version for key, row in before.items() if key not in gone}
    versions |= {key: address(content) for key, content in contents.items()}
    for parsed in sorted(loaded.definitions, key=lambda parsed: parsed.key):
        key, definition = parsed.key, parsed.definition
        row = before.get(key)
        version = versions[key]
        change: Change = "added" if row is None else "unchanged" if row.version == version else "changed"
        plan.outcomes.append(Outcome(*key, change, version, None if row is None else row.version))
        pinned = _pins(key, scope, versions)
        if change != "unchanged":
            plan.versions.append((*key, version, contents[key].decode()))
            plan.put.append((*key, version, _name(definition), _about(definition), origin, pinned))
        elif row is not None and (row.origin != origin or row.pins != pinned):
            plan.touch.append((*key, origin, pinned))
    for definition in staying:
        key = (kind_of(definition), definition.id)
        pinned = _pins(key, scope, versions)
        if pinned != before[key].pins:
            plan.touch.append((*key, before[key].origin, pinned))
    for key in sorted(gone):
        plan.outcomes.append(Outcome(*key, "removed", None, before[key].version))
        plan.remove.append(key)
    return plan


def _pins(key: tuple[Kind, str], scope: Scope, versions: Mapping[tuple[Kind, str], str]) -> str | None:
    if key[0] not in ("orchestration", "agent"):
        return None
    reached = reach(key, scope)
    if len(reached) > _MAX_PINS:
        raise InvalidDefinitions(
            [(str(Place(kind=key[0], id=key[1])), f"It uses {len(reached)} definitions; at most {_MAX_PINS} may be.")]
        )
    return pins_json({f"{kind}:{name}": versions[kind, name] for kind, name in reached})


async def _write(
    database: Database, tenant: str, before: _Rows, plan: _Plan, report: SyncReport, actor: str, origin: Origin
) -> bool:
    """Store the plan, if nothing has changed since it was made."""

    async def work(session: Session) -> bool:
        await session.lock(exclusive=[lock_key("definitions", tenant)])
        if await _current(session, tenant) != before:
            return False
        for statement, members in (
            (_KEEP_VERSIONS, plan.versions),
            (_PUT, plan.put),
            (_TOUCH, plan.touch),
            (_REMOVE, plan.remove),
        ):
            if members:
                await session.fetch(statement, members, tenant=tenant)
        if report.changes:
            await append_audit(
                session,
                actor=actor,
                tenant=tenant,
                action=f"definitions.{origin}",
                subject=tenant,
                old={change: _audited(report, change, old=True) for change in ("changed", "removed")},
                new={change: _audited(report, change, old=False) for change in ("added", "changed")},
            )
        return True

    return await database.transact(work)


def _audited(report: SyncReport, change: Change, *, old: bool) -> dict[str, Any]:
    found = report.of(change)
    told: dict[str, Any] = {item.key: item.old if old else item.version for item in found[:_AUDITED]}
    return told if len(found) <= _AUDITED else {**told, "and more": len(found) - _AUDITED}


def _name(definition: Definition) -> str:
    return definition.label if isinstance(definition, (Tool, McpServer)) else definition.name


def _about(definition: Definition) -> str:
    return "" if isinstance(definition, McpServer) else definition.description
