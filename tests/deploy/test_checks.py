"""The checks of `make deploy-check` detect what they are for; their tools need no system package here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.checks import tools
from deploy.checks.workflows import problems, scripts
from deploy.kubernetes.chart import example_values, render_chart
from deploy.kubernetes.templates import Renderer, TemplateError


def test_a_misspelt_field_of_a_custom_object_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.custom_objects(tmp_path)
    objects = [item for name in ("keda", "ha") for item in render_chart(example_values(name))]
    scaled = next(item for item in objects if item["kind"] == "ScaledObject")
    scaled["spec"]["minReplicas"] = scaled["spec"].pop("minReplicaCount")

    def wrong() -> Iterator[tuple[str, list[dict[str, Any]]]]:
        yield "wrong", objects

    monkeypatch.setattr(tools, "variants", wrong)
    with pytest.raises(tools.Problem, match="minReplicas"):
        tools.custom_objects(tmp_path)


def test_a_difference_to_another_renderer_is_detected() -> None:
    objects = render_chart()
    changed: list[dict[str, Any]] = [{**objects[0], "metadata": {**objects[0]["metadata"], "labels": {}}}, *objects[1:]]
    tools._compare([*objects], render_chart(), "equal")
    with pytest.raises(tools.Problem, match="not equal"):
        tools._compare(changed, render_chart(), "changed")


def test_output_of_a_quiet_tool_is_a_problem() -> None:
    with pytest.raises(tools.Problem, match="a warning"):
        tools.run("sh", "-c", "echo a warning >&2", quiet=True)
    with pytest.raises(tools.Problem):
        tools.run("false")


def test_a_missing_tool_does_not_pass(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(program: str) -> str | None:
        return None

    monkeypatch.setattr(tools, "find", missing)
    monkeypatch.setattr(tools.sys, "argv", ["tools", "Caddyfile"])
    with pytest.raises(SystemExit):
        tools.main()
    shown = capsys.readouterr().out
    assert "not run  Caddyfile: needs caddy" in shown
    assert "ok " not in shown


def test_a_wrong_command_of_a_workflow_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "ci.yaml"
    file.write_text(
        """
        env: {A: a}
        jobs:
          test:
            env: {B: b}
            steps:
              - uses: actions/checkout
              - run: make test spin ARGS="$A $B $C $D" && echo "${E}" "$HOME"
                env: {C: c}
        """
    )
    (script,) = scripts(file)
    assert list(problems(script, "SPIN := spin: a\ntest soak: export A := b\n")) == [
        "ci.yaml: test, step 2: the Makefile has no target spin",
        "ci.yaml: test, step 2: D is not set",
        "ci.yaml: test, step 2: E is not set",
    ]


VALUES: dict[str, Any] = {"Values": {"a": 1, "list": ["x", "y"], "none": [], "map": {"k": "v"}, "text": "t"}}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ .Values.a }}", "1"),
        ("a\n  {{- if .Values.none }}\nb{{ else }} c{{ end }}", "a c"),
        ("{{ range .Values.list }}[{{ . }}]{{ end }}", "[x][y]"),
        ("{{ range $k, $v := .Values.map }}{{ $k }}={{ $v }}{{ end }}", "k=v"),
        ("{{ with .Values.map }}{{ .k }}{{ end }}", "v"),
        ('{{ .Values.list | join "," | quote }}', '"x,y"'),
        ("a:{{ toYaml .Values.map | nindent 2 }}", "a:\n  k: v"),
        ("{{ add .Values.a 2 3 }}", "6"),
        ("{{ if and .Values.a (gt (.Values.a | int) 0) }}yes{{ end }}", "yes"),
        ("{{/* a comment */}}x", "x"),
        ("{{ .Values.missing }}", ""),
    ],
)
def test_the_renderer_follows_helm(template: str, expected: str) -> None:
    assert Renderer({}).render(template, VALUES) == expected


@pytest.mark.parametrize(
    "template", ['{{ lookup "v1" }}', "{{ if .Values.a }}", "{{ tpl .Values.text . }}", "{{ .Values.a.b }}"]
)
def test_what_is_outside_of_the_subset_is_an_error(template: str) -> None:
    with pytest.raises((TemplateError, IndexError)):
        Renderer({}).render(template, VALUES)
