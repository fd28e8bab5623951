"""The checks of `runlane doctor` over HTTP, and the serving processes."""

from __future__ import annotations

from fastapi import Request

from runlane.access.policy import require_platform
from runlane.api.auth import WorkersView
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.serializers import ValueBody
from runlane.api.services import Services, parts_of
from runlane.diagnosis.checks import check_retention, check_secrets, check_webhooks, check_work
from runlane.domain.database_size import DatabaseSize
from runlane.domain.finding import Diagnosis, Finding, Level
from runlane.store.access.servers import list_servers
from runlane.store.sql.migrations import HEAD
from runlane.store.sql.table_sizes import read_sizes

router = RawRouter(tags=["system"])


@router.get("/doctor", response_model=Diagnosis, responses=answers())
async def get_doctor(request: Request, principal: WorkersView) -> ValueBody:
    """Check the services that execute runs and the operators' configuration, as `runlane doctor` does.

    The checks cover clock, workers, lanes, tasks, secrets, schedules, triggers, limits, webhooks, retention and
    statements. They include the runs of every tenant, so the request needs a key of the default tenant.
    """
    require_platform(principal)
    parts = parts_of(request)
    database, settings = parts.database, parts.app.settings
    findings = (
        Finding("database", Level.OK, f"{database.dialect} responds"),
        _bus(parts),
        *await check_work(database),
        await check_secrets(database, settings),
        *await check_webhooks(database, settings),
        await check_retention(database, settings),
    )
    healthy = all(finding.level is not Level.BROKEN for finding in findings)
    return ValueBody(Diagnosis(healthy, HEAD, findings, tuple(await list_servers(database))))


@router.get("/doctor/database", response_model=DatabaseSize, responses=answers())
async def get_database_size(request: Request, principal: WorkersView) -> ValueBody:
    """Return the size of the database and of its tables, for platform admins."""
    require_platform(principal)
    return ValueBody(await read_sizes(parts_of(request).database))


def _bus(parts: Services) -> Finding:
    bus = parts.connection.bus
    if bus.kind == "none":
        return Finding("wake-ups", Level.NOTE, "processes poll the database for work")
    if bus.reaches_others:
        return Finding("wake-ups", Level.OK, f"{bus.kind} connects the processes")
    cure = "No data is lost, but starts and streams are slower. Check the connection."
    return Finding("wake-ups", Level.WARNING, f"{bus.kind} does not respond", cure)
