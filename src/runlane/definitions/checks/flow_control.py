"""Flow control: the keys must be valid templates. Their values are only known when a run starts."""

from __future__ import annotations

from runlane.definitions.problem import Location, Problems
from runlane.definitions.schema.definition import Agent, Definition, Orchestration
from runlane.definitions.schema.trigger import Trigger
from runlane.errors import TemplateError
from runlane.templates.template import look_alikes_in, placeholders


def check_flow_control(definition: Definition, location: Location, problems: Problems) -> None:
    """Report keys that are not valid templates, and text in them that looks like a placeholder."""
    if not isinstance(definition, (Orchestration, Agent, Trigger)) or definition.flow_control is None:
        return
    for field, template in definition.flow_control.keys.items():
        here = location.at(field=f"flow_control.{field}")
        try:
            placeholders(template)
        except TemplateError as error:
            problems.error(here, str(error))
            continue
        for text, path in look_alikes_in(template):
            meant = f" Write {{{{{path}}}}} for a value of the input." if path is not None else ""
            problems.warn(here, f'"{text}" is plain text, so all runs share the key.{meant}')
