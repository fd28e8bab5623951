"""Convert schedules of other tools, and those that orchestrations of other tools contain."""

from __future__ import annotations

from typing import Any, Final, cast

from runlane.catalog.importers.foreign import Warn

_UNIT_SECONDS: Final = {"minutes": 60, "hours": 3600, "days": 86400}
_NAMED: Final = ("id", "name", "zone", "overlap", "catch_up")


def tidy_schedule(body: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Convert a schedule; one that is written for Runlane is returned as it is."""
    if "target" in body and "spec" in body:
        return body
    tidy: dict[str, Any] = {name: body[name] for name in _NAMED if name in body}
    tidy["target"] = {"kind": body.get("target_type"), "name": body.get("target_id")}
    tidy["message"] = body.get("prompt") or ""
    tidy["spec"] = [_spec(body)]
    policy = body.get("missed_run_policy")
    if policy is not None:
        tidy["catch_up"] = "latest" if policy == "run_immediately" else "none"
    if "zone" not in tidy:
        warn(
            "Its cron expression is in UTC, as in the product that it was exported from. Set zone to change that.", None
        )
    return tidy


def _spec(body: dict[str, Any]) -> dict[str, Any]:
    if body.get("schedule_type") == "interval" or "interval_value" in body:
        unit = _UNIT_SECONDS.get(str(body.get("interval_unit")), 60)
        value = body.get("interval_value")
        return {"every_seconds": value * unit if isinstance(value, int | float) else value}
    return {"cron": body.get("cron_expression", body.get("cron"))}


def schedule_of(orchestration: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schedule that an orchestration contains: a cron expression, or an object."""
    given, name = orchestration.get("schedule"), orchestration.get("id")
    if isinstance(given, str):
        given = {"cron_expression": given}
    if not isinstance(given, dict) or not isinstance(name, str):
        return None
    body = cast("dict[str, Any]", given)
    if "target" in body:
        return {"id": name, **body}
    return {"id": name, **body, "target_type": "orchestration", "target_id": name}
