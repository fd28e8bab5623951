"""Sync: store definitions in the database, all of them or none.

They are checked together with the stored definitions, outside of a transaction because that takes time. The
transaction then takes the tenant's lock and compares the stored definitions with those that were checked; if they have
changed, everything is checked again. So only checked definitions are stored, and concurrent syncs are serialized.

A sync has a source, its project. It changes and removes only definitions of that source or of none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from runlane.catalog.bundle_format import SkippedItem
from runlane.catalog.current_rows import missing_of, require_current
from runlane.catalog.missing_secrets import missing_secrets
from runlane.catalog.pins import Pins
from runlane.catalog.schedule_sync import ScheduleChanges, schedule_changes
from runlane.definitions.checks.environment import Environment
from runlane.definitions.dependencies import uses
from runlane.definitions.files import MAX_BYTES, MAX_DEFINITIONS
from runlane.definitions.loader import LoadedDefinitions, check_loaded
from runlane.definitions.problem import KIND_WORDS, Location, Problem, Severity, refuse
from runlane.definitions.schema.definition import Definition, Kind, McpServer, Orchestration, Tool
from runlane.definitions.schema.trigger import Trigger
from runlane.definitions.scope import DefinitionScope, scope_of
from runlane.definitions.versions import address, canonical, kind_of
from runlane.domain.ids import lock_key
from runlane.domain.quota import TRIGGERS
from runlane.domain.schedule import ScheduleSettings
from runlane.domain.schedule_times import describe_times
from runlane.domain.source import DEFAULT_SOURCE, check_source
from runlane.domain.wire import to_dict
from runlane.errors import Conflict, InvalidDefinitions, InvalidRequest
from runlane.store.access.audit import append_audit
from runlane.store.access.quotas import check_one_more
from runlane.store.access.tenants import FIND_TENANT, unknown_tenant
from runlane.store.definition_rows import KEEP_VERSIONS, PUT, REMOVE, TOUCH, Rows, check_stored, read_rows
from runlane.store.definitions import load_all
from runlane.store.events.run_ends import set_run_listeners
from runlane.store.queue.tenant_lanes import check_tenant_lanes, settle_tenant_lanes
from runlane.store.sql.database import Database, Session

Change = Literal["added", "changed", "removed", "unchanged"]
Origin = Literal["sync", "import"]
# How often a sync is checked again because of concurrent ones before it fails.
_TRIES: Final = 8
_AUDITED: Final = 200
_NAMED: Final = 5
_EXISTS: Final = "A definition of this name exists already."


@dataclass(frozen=True, slots=True)
class SyncedDefinition:
    """The outcome of one definition. `old` is the previous version."""

    kind: Kind
    id: str
    change: Change
    version: Annotated[str | None, Field(description="Its version now; null when it was removed.")]
    old: Annotated[str | None, Field(alias="old_version", description="Its version before; null when it is new.")] = (
        None
    )

    @property
    def key(self) -> str:
        """The key in the pins of a run."""
        return f"{self.kind}:{self.id}"


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The changes of a sync, or with `dry_run` the changes that it would make. `skipped` are those of a tolerant sync.

    `missing` are definitions of the same source that the sync does not contain and did not remove.
    """

    outcomes: Sequence[SyncedDefinition]
    warnings: Sequence[Problem]
    dry_run: bool
    skipped: Sequence[SkippedItem] = ()
    source: str | None = None
    missing: Sequence[str] = ()

    def of(self, change: Change) -> list[SyncedDefinition]:
        """Return the definitions with this outcome."""
        return [outcome for outcome in self.outcomes if outcome.change == change]

    @property
    def changes(self) -> bool:
        """Whether anything has changed."""
        return any(outcome.change != "unchanged" for outcome in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        changes: tuple[Change, ...] = ("added", "changed", "removed", "unchanged")
        return {
            "dry_run": self.dry_run,
            "source": self.source,
            **{change: len(self.of(change)) for change in changes},
            "items": [to_dict(outcome) for outcome in self.outcomes],
            "missing": list(self.missing),
            "warnings": [problem.to_dict() for problem in self.warnings],
        }


@dataclass(frozen=True, slots=True)
class _SyncRequest:
    """The parameters of a sync."""

    loaded: LoadedDefinitions
    gone: Collection[tuple[Kind, str]]
    origin: Origin
    source: str | None
    take_over: bool
    tasks: Collection[str] | None
    tolerant: bool
    environment: Environment | None


@dataclass(slots=True)
class _Plan:
    """The rows to write."""

    outcomes: list[SyncedDefinition] = field(default_factory=list[SyncedDefinition])
    versions: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    put: list[tuple[str | None, ...]] = field(default_factory=list[tuple[str | None, ...]])
    touch: list[tuple[str | None, ...]] = field(default_factory=list[tuple[str | None, ...]])
    remove: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    lanes: set[str] = field(default_factory=set[str])
    schedules: ScheduleChanges = field(default_factory=ScheduleChanges)
    triggers: list[Trigger] = field(default_factory=list[Trigger])


async def sync_definitions(
    database: Database,
    tenant: str,
    loaded: LoadedDefinitions,
    *,
    actor: str,
    dry_run: bool = False,
    remove_missing: bool = False,
    source: str | None = DEFAULT_SOURCE,
    take_over: bool = False,
    origin: Origin = "sync",
    tasks: Collection[str] | None = None,
    tolerant: bool = False,
    keep_existing: bool = False,
    environment: Environment | None = None,
    expected: Mapping[tuple[Kind, str], str] | None = None,
) -> SyncReport:
    """Store parsed definitions in the database.

    `remove_missing` removes definitions of `source` that are not among them; those of other sources and imported ones
    stay. A definition of another source is changed only with `take_over`, otherwise it raises Conflict. For imported
    bundles, `tolerant` skips definitions that have errors or belong to another source, and accepts tolerable errors,
    such as missing targets of references, as warnings; `keep_existing` skips definitions that exist. With an
    `environment`, what this installation does not provide is a warning. `expected` are versions that must be current,
    otherwise it raises VersionMismatch.
    """
    if source is not None:
        check_source(source)
    elif remove_missing:
        raise InvalidRequest("Only a sync with a source can remove definitions. Name the source.")
    loaded.raise_errors()
    for _ in range(_TRIES):
        before, stored = await read_current(database, tenant)
        require_current(before, expected or {})
        missing = missing_of(loaded, before, source)
        gone = missing if remove_missing else set[tuple[Kind, str]]()
        kept, skipped = _without(loaded, dict.fromkeys(before, _EXISTS) if keep_existing else {})
        if not take_over:
            foreign = await asyncio.to_thread(_foreign, kept, before, source)
            _refuse_foreign({} if tolerant else foreign, source)
            kept, more = _without(kept, {key: _belongs_to(owner) for key, owner in foreign.items()})
            skipped += more
        request = _SyncRequest(kept, gone, origin, source, take_over, tasks, tolerant, environment)
        plan, warnings, broken = await asyncio.to_thread(_check_and_plan, request, before, stored)
        brought = {(outcome.kind, outcome.id) for outcome in plan.outcomes}
        warnings += await missing_secrets(database, tenant, [item for item in kept.definitions if item.key in brought])
        staying = () if remove_missing else [f"{kind}:{name}" for kind, name in sorted(missing)]
        report = SyncReport(plan.outcomes, warnings, dry_run, [*skipped, *broken], source, staying)
        max_lanes = None if environment is None else environment.max_lanes
        if dry_run:
            await database.transact(partial(check_tenant_lanes, tenant=tenant, named=plan.lanes, most=max_lanes))
            await plan.schedules.check(database, tenant)
            return report
        if await _write(database, tenant, before, plan, report, actor, origin, max_lanes):
            return report
    raise Conflict(f'The definitions of tenant "{tenant}" keep changing while they are checked. Try again.')


async def read_current(database: Database, tenant: str) -> tuple[Rows, list[Definition]]:
    """Return the current definitions of a tenant: rows by kind and id, and their definitions in the same order."""

    async def work(session: Session) -> tuple[Rows, list[Definition]]:
        if not await session.fetch(FIND_TENANT, tenant=tenant):
            raise await unknown_tenant(session, tenant)
        rows = await read_rows(session, tenant)
        return rows, await load_all(session, tenant, [(*key, row.version) for key, row in rows.items()])

    return await database.transact(work)


def _foreign(loaded: LoadedDefinitions, before: Rows, source: str | None) -> dict[tuple[Kind, str], str]:
    """Return the definitions that would change although they belong to another source, with that source."""
    found: dict[tuple[Kind, str], str] = {}
    for parsed in loaded.definitions:
        row = before.get(parsed.key)
        if row is None or row.source is None or row.source == source:
            continue
        if address(canonical(parsed.definition)) != row.version:
            found[parsed.key] = row.source
    return found


def _belongs_to(owner: str) -> str:
    return f'It belongs to the source "{owner}". Use another name, or take it over (--take-over, take_over).'


def _refuse_foreign(foreign: Mapping[tuple[Kind, str], str], source: str | None) -> None:
    if not foreign:
        return
    shown = [f'{kind}:{name} (source "{owner}")' for (kind, name), owner in sorted(foreign.items())[:_NAMED]]
    more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
    own = "has no source" if source is None else f'has the source "{source}"'
    raise Conflict(
        f"These definitions belong to another source and would be changed: {', '.join(shown)}{more}. This sync {own}. "
        "Give them other names, correct the source (--source, source), or take them over (--take-over, take_over). "
        "Nothing was changed."
    )


def _without(
    loaded: LoadedDefinitions, reasons: Mapping[tuple[Kind, str], str]
) -> tuple[LoadedDefinitions, list[SkippedItem]]:
    kept = [parsed for parsed in loaded.definitions if parsed.key not in reasons]
    skipped = [SkippedItem(*parsed.key, reasons[parsed.key]) for parsed in loaded.definitions if parsed.key in reasons]
    return LoadedDefinitions(kept, loaded.problems, loaded.broken), skipped


def _check_and_plan(
    request: _SyncRequest, before: Rows, stored: Sequence[Definition]
) -> tuple[_Plan, list[Problem], list[SkippedItem]]:
    loaded, skipped = request.loaded, list[SkippedItem]()
    keys = dict(zip(before, stored, strict=True))
    while True:
        given = {parsed.key for parsed in loaded.definitions}
        staying = [definition for key, definition in keys.items() if key not in request.gone and key not in given]
        checked = check_loaded(loaded, staying, tasks=request.tasks, environment=request.environment)
        fatal = [problem for problem in checked.errors if not (problem.tolerable and request.tolerant)]
        if not (request.tolerant and fatal):
            break
        # To skip a definition may leave references without a target, or break a cycle, so the others are checked again.
        reasons: dict[tuple[Kind, str], str] = {}
        for problem in fatal:
            if problem.location.kind is not None and problem.location.id is not None:
                reasons.setdefault((problem.location.kind, problem.location.id), problem.brief)
        loaded, more = _without(loaded, reasons)
        if not more:
            break
        skipped += more
    refuse(fatal)
    _refuse_used(staying, [keys[key] for key in request.gone], scope_of(stored))
    warnings = [Problem(Severity.WARNING, problem.location, problem.message) for problem in checked.problems]
    everything = (*staying, *(parsed.definition for parsed in loaded.definitions))
    plan = _plan(replace(request, loaded=loaded), before, staying, scope_of(everything))
    plan.lanes = {definition.lane for definition in everything if isinstance(definition, Orchestration)}
    written = [item.id for item in plan.outcomes if item.kind == "schedule" and item.change in ("added", "changed")]
    plan.schedules = schedule_changes(loaded, written, plan.remove, take_over=request.take_over)
    plan.triggers = [definition for definition in everything if isinstance(definition, Trigger)]
    return plan, warnings, skipped


def _refuse_used(staying: Iterable[Definition], removed: Sequence[Definition], scope: DefinitionScope) -> None:
    keys = {(kind_of(definition), definition.id) for definition in removed}
    problems: list[tuple[str, str]] = []
    for user in staying if keys else ():
        for kind, name in sorted(uses(user, scope) & keys):
            about = f'{KIND_WORDS[kind_of(user)]} "{user.id}", which is not part of this sync, uses it.'
            problems.append((str(Location(kind=kind, id=name)), f"It cannot be removed: {about}"))
    if problems:
        raise InvalidDefinitions(problems)


def _plan(request: _SyncRequest, before: Rows, staying: Sequence[Definition], scope: DefinitionScope) -> _Plan:
    plan = _Plan()
    loaded, gone = request.loaded, request.gone
    contents = {parsed.key: canonical(parsed.definition) for parsed in loaded.definitions}
    versions: dict[tuple[Kind, str], str] = {key: row.version for key, row in before.items() if key not in gone}
    versions |= {key: address(content) for key, content in contents.items()}
    pins = Pins(scope, versions)
    for parsed in sorted(loaded.definitions, key=lambda parsed: parsed.key):
        key, definition = parsed.key, parsed.definition
        row = before.get(key)
        version = versions[key]
        change: Change = "added" if row is None else "unchanged" if row.version == version else "changed"
        plan.outcomes.append(SyncedDefinition(*key, change, version, None if row is None else row.version))
        pinned = pins.of(key)
        if change != "unchanged":
            plan.versions.append((*key, version, contents[key].decode()))
            plan.put.append(
                (*key, version, _name(definition), _about(definition), request.origin, request.source, pinned)
            )
            continue
        assert row is not None  # noqa: S101 - only what is stored can be unchanged
        # An unchanged definition keeps its source.
        own = request.take_over or row.source in (None, request.source)
        touched = (request.origin, request.source, pinned) if own else (row.origin, row.source, pinned)
        if touched != (row.origin, row.source, row.pins):
            plan.touch.append((*key, *touched))
    for definition in staying:
        key = (kind_of(definition), definition.id)
        pinned = pins.of(key)
        row = before[key]
        if pinned != row.pins:
            plan.touch.append((*key, row.origin, row.source, pinned))
    for key in sorted(gone):
        plan.outcomes.append(SyncedDefinition(*key, "removed", None, before[key].version))
        plan.remove.append(key)
    return plan


async def _write(
    database: Database,
    tenant: str,
    before: Rows,
    plan: _Plan,
    report: SyncReport,
    actor: str,
    origin: Origin,
    max_lanes: int | None,
) -> bool:
    """Store the plan; return False if the definitions have changed since it was made."""

    async def work(session: Session) -> bool:
        await session.lock(exclusive=[lock_key("definitions", tenant), *plan.schedules.locks(tenant)])
        if await read_rows(session, tenant) != before:
            return False
        new_triggers = sum(change.kind == "trigger" for change in report.of("added"))
        if new_triggers:
            await check_one_more(session, tenant, TRIGGERS, None, new_triggers)
        changes = ((KEEP_VERSIONS, plan.versions), (PUT, plan.put), (TOUCH, plan.touch), (REMOVE, plan.remove))
        for statement, members in changes:
            await session.fetch(statement, members, tenant=tenant)
        if plan.versions:
            await check_stored(session, tenant, MAX_DEFINITIONS, MAX_BYTES)
        await settle_tenant_lanes(session, tenant, plan.lanes, max_lanes)
        await plan.schedules.settle(session, tenant, actor)
        await set_run_listeners(session, tenant, plan.triggers)
        if report.changes:
            await append_audit(
                session,
                actor=actor,
                tenant=tenant,
                action=f"definitions.{origin}",
                subject=tenant,
                old={change: _audited(report, change, old=True) for change in ("changed", "removed")},
                new={"source": report.source}
                | {change: _audited(report, change, old=False) for change in ("added", "changed")},
            )
        return True

    return await database.transact(work)


def _audited(report: SyncReport, change: Change, *, old: bool) -> dict[str, Any]:
    found = report.of(change)
    versions: dict[str, Any] = {item.key: item.old if old else item.version for item in found[:_AUDITED]}
    return versions if len(found) <= _AUDITED else {**versions, "and more": len(found) - _AUDITED}


def _name(definition: Definition) -> str:
    return definition.label if isinstance(definition, (Tool, McpServer)) else definition.name


def _about(definition: Definition) -> str:
    if isinstance(definition, ScheduleSettings):
        return describe_times(definition)
    return "" if isinstance(definition, McpServer) else definition.description
