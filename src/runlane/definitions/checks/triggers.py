"""Triggers: the condition must be an expression, and placeholders must refer to fields of the event."""

from __future__ import annotations

from typing import Any

from runlane.definitions.checks.flow import check_expression
from runlane.definitions.problem import Location, Problems, listing, near
from runlane.definitions.schema.trigger import Trigger
from runlane.domain.tenant_event import SCOPE_FIELDS
from runlane.errors import TemplateError
from runlane.templates.template import placeholders_in

_ROOT = "event"


def check_trigger(trigger: Trigger, location: Location, problems: Problems) -> None:
    """Report an invalid condition, and placeholders that never have a value."""
    if trigger.condition is not None:
        check_expression(trigger.condition, location.at(field="condition"), problems, "event.data.key")
    for field in ("message", "input", "ordering_key"):
        value: Any = getattr(trigger, field)
        if value is not None:
            _check_placeholders(value, location.at(field=field), problems)


def _check_placeholders(value: Any, location: Location, problems: Problems) -> None:
    try:
        paths = placeholders_in(value)
    except TemplateError as error:
        problems.error(location, str(error))
        return
    for path in paths:
        root, _, rest = path.partition(".")
        field = rest.partition(".")[0]
        if root != _ROOT:
            problems.error(
                location,
                f"The placeholder {{{{{path}}}}} never has a value. A trigger has only the event: write "
                f"{{{{event.data.{path}}}}}.",
            )
        elif field and field not in SCOPE_FIELDS:
            problems.error(
                location,
                f'An event does not have the field "{field}"{near(field, SCOPE_FIELDS)}. '
                f"Fields: {listing(SCOPE_FIELDS)}. The data of the event is in event.data.",
            )
