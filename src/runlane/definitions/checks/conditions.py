"""Conditions and scripts of an orchestration: the keys, form fields and options that they name must exist.

A missing key is None when a condition is evaluated, so a misspelt key takes the wrong branch without an error. The
checks report only certain problems; `code_reads` lists the code that is not checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from runlane.definitions.checks.code_reads import CodeReads, Comparison, Mode, StateRead, code_reads
from runlane.definitions.checks.placeholders import HUMAN_KEY, key_hint, known_keys, templates_of
from runlane.definitions.forms import RESPONSE
from runlane.definitions.problem import Location, Problems, listing, near
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import HumanField, HumanStep, IfElseStep, LoopStep, Step, SwitchStep, TransformStep
from runlane.errors import TemplateError
from runlane.templates.template import placeholders_in


@dataclass(frozen=True, slots=True)
class FormFields:
    """The forms whose answers are stored under one key of the state.

    `sure` means that no other value can be stored under the key; otherwise the input of a run may contain the field.
    """

    steps: tuple[str, ...]
    fields: Mapping[str, tuple[HumanField, ...]]
    sure: bool

    def missing(self, field: str) -> str:
        """Return a message that the forms do not have this field, with the existing fields."""
        steps = ", ".join(f'"{step}"' for step in self.steps)
        what = f"form of step {steps} has" if len(self.steps) == 1 else f"forms of steps {steps} have"
        return f'The {what} no field "{field}"{near(field, self.fields)}. Fields: {listing(self.fields)}.'


def check_conditions(
    orchestration: Orchestration, given: Collection[str], location: Location, problems: Problems
) -> None:
    """Report keys, form fields and options that do not exist, in conditions, scripts and placeholders."""
    known = known_keys(orchestration, given)
    forms = forms_of(orchestration, given)
    for step in orchestration.steps:
        for field, code, mode in code_of(step):
            found = code_reads(code, mode)
            here = location.at(step=step.id, field=field)
            _check_reads(found, known, forms, here, problems, with_line=mode == "exec")
            _check_comparisons(found, forms, here, problems, with_line=mode == "exec")
            if mode == "exec" and not found.sets_result:
                problems.warn(here, "The script never sets result, so the step fails. End it with: result = ...")
            if isinstance(step, SwitchStep) and found.whole is not None:
                _check_cases(step, found.whole, forms, location, problems)
        _check_placeholders(step, forms, location, problems)


def code_of(step: Step) -> Iterator[tuple[str, str, Mode]]:
    """Return the fields of a step that are code, with the mode of the parser."""
    match step:
        case IfElseStep():
            yield "if_condition", step.if_condition, "eval"
        case SwitchStep():
            yield "switch_expression", step.switch_expression, "eval"
        case LoopStep():
            if step.while_condition is not None:
                yield "while_condition", step.while_condition, "eval"
            if step.for_each is not None:
                yield "for_each", step.for_each, "eval"
        case TransformStep():
            yield "transform_code", step.transform_code, "exec"
        case _:
            return


def forms_of(orchestration: Orchestration, given: Collection[str]) -> dict[str, FormFields]:
    """Return the keys that contain only answers of human steps, with the fields of their forms."""
    asking: dict[str, list[HumanStep]] = {}
    others: set[str] = set(given)
    for step in orchestration.steps:
        if isinstance(step, HumanStep):
            for key in {step.output_key or HUMAN_KEY, HUMAN_KEY}:
                asking.setdefault(key, []).append(step)
        elif step.output_key is not None:
            others.add(step.output_key)
    forms: dict[str, FormFields] = {}
    for key, steps in asking.items():
        if key in others:
            continue
        fields: dict[str, list[HumanField]] = {}
        for step in steps:
            for field in step.human_fields:
                fields.setdefault(field.name, []).append(field)
            if not step.human_fields:
                fields.setdefault(RESPONSE, [])
        declared = orchestration.state_schema.get(key)
        if declared is not None and isinstance(declared.default, dict):
            # The fields of the default value exist before the first answer.
            continue
        forms[key] = FormFields(
            tuple(step.id for step in steps),
            {name: tuple(found) for name, found in fields.items()},
            sure=declared is None,
        )
    return forms


def _check_reads(
    found: CodeReads,
    known: Collection[str],
    forms: Mapping[str, FormFields],
    location: Location,
    problems: Problems,
    *,
    with_line: bool,
) -> None:
    seen: set[tuple[str, str | None]] = set()
    for read in found.reads:
        form = forms.get(read.key)
        field = read.field if read.key in known else None
        if (read.key, field) in seen:
            continue
        seen.add((read.key, field))
        where = f"Line {read.line}: " if with_line else ""
        if read.key not in known:
            hint = f'{key_hint(read.key, known)[:-1]}; if it may be missing, write state.get("{read.key}").'
            problems.error(location, f'{where}"state.{read.key}" is never set{hint}', tolerable=True)
        elif form is not None and field is not None and field not in form.fields:
            _report(form, location, where + form.missing(field), problems)


def _check_comparisons(
    found: CodeReads, forms: Mapping[str, FormFields], location: Location, problems: Problems, *, with_line: bool
) -> None:
    for comparison in dict.fromkeys(found.comparisons):
        form = forms.get(comparison.key)
        if form is None:
            continue
        why = _why_never(comparison, form.fields.get(comparison.field, ()))
        if why is not None:
            _report(form, location, (f"Line {comparison.line}: " if with_line else "") + why, problems)


def _why_never(comparison: Comparison, fields: Collection[HumanField]) -> str | None:
    """Return why a comparison is never true; None if it may be."""
    value = comparison.value
    if not fields or not value:
        return None
    types = {field.type for field in fields}
    if types == {"boolean"} and not comparison.member:
        return f'The field "{comparison.field}" is a boolean, not "{value}". Compare it with True or False.'
    if types == {"number"} and not comparison.member:
        return f'The field "{comparison.field}" is a number, not "{value}". Compare it with a number.'
    if types != ({"multiselect"} if comparison.member else {"select"}):
        return None
    options = list(dict.fromkeys(option for field in fields for option in field.options))
    if value in options:
        return None
    return (
        f'"{value}" is not an option of the field "{comparison.field}"{near(value, options)}. '
        f"Options: {listing(options)}."
    )


def _check_cases(
    step: SwitchStep, whole: StateRead, forms: Mapping[str, FormFields], location: Location, problems: Problems
) -> None:
    form = forms.get(whole.key)
    if form is None or whole.field is None:
        return
    fields = form.fields.get(whole.field, ())
    if any(field.type != "select" for field in fields):
        # A switch compares booleans and numbers as strings, so only options can be checked.
        return
    for case in step.switch_cases:
        why = _why_never(Comparison(whole.key, whole.field, case, 1), fields)
        if why is not None:
            problems.warn(location.at(step=step.id, field=f"switch_cases.{case}"), f"This case is never taken: {why}")


def _check_placeholders(step: Step, forms: Mapping[str, FormFields], location: Location, problems: Problems) -> None:
    for field, value in templates_of(step):
        try:
            paths = placeholders_in(value)
        except TemplateError:
            # check_placeholders reports this problem.
            continue
        for path in paths:
            key, *subs = path.split(".")
            form = forms.get(key)
            if form is None or not subs or subs[0].lstrip("-").isdecimal() or subs[0] in form.fields:
                continue
            _report(form, location.at(step=step.id, field=field), form.missing(subs[0]), problems)


def _report(form: FormFields, location: Location, message: str, problems: Problems) -> None:
    if form.sure:
        problems.error(location, message, tolerable=True)
    else:
        problems.warn(location, message)
