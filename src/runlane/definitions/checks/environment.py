"""Checks against the settings of an installation: its models, the addresses that it may call, its limits.

Definitions are often checked in another environment than the one in which they run, and code may register further
models. So it is a warning if this installation lacks something. Only exceeding a limit of the operator is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import urlsplit

from runlane.addresses import Address, AllowList, literal, normal_host, odd_number, parse_allow_list, refusal
from runlane.definitions.problem import Location, Problems, listing, near
from runlane.definitions.schema.definition import Agent, Definition, McpServer, Orchestration, Tool
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, LlmStep, ToolStep
from runlane.domain.model_names import resolve_model
from runlane.settings import OWN_PROVIDERS, SCRIPTED, Settings

_LOOPBACK: Final[tuple[Address, ...]] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings that determine whether definitions can run in this installation."""

    providers: Mapping[str, Collection[str]]
    allowed: AllowList
    max_losses: int
    max_lanes: int | None = None
    scripted_models: bool = True


def environment_of(settings: Settings) -> Environment:
    """Return the environment of these settings."""
    providers: dict[str, Collection[str]] = dict.fromkeys(OWN_PROVIDERS, ())
    providers |= {name: tuple(found.prices) for name, found in settings.providers.items()}
    return Environment(
        providers,
        parse_allow_list(settings.outbound_allow or ""),
        settings.max_losses,
        settings.max_lanes_per_tenant,
        settings.scripted_models,
    )


def check_environment(definition: Definition, environment: Environment, location: Location, problems: Problems) -> None:
    """Report models without a known provider, addresses that must not be called, and exceeded limits."""
    for here, name in _models(definition, environment.providers, location):
        _check_model(name, environment, here, problems)
    match definition:
        case Tool(tool_type="http", url=str(url)) | McpServer(server_type="remote", url=str(url)):
            _check_address(url, environment.allowed, location.at(field="url"), problems)
        case Orchestration(max_losses=int(requested)) if requested > environment.max_losses:
            # The error is tolerable because a run never exceeds the limit, whatever an imported bundle requests.
            problems.error(
                location.at(field="max_losses"),
                f"max_losses={requested} is more than this installation allows ({environment.max_losses}). Lower it, "
                "or ask an operator to raise RUNLANE_MAX_LOSSES.",
                tolerable=True,
            )
        case _:
            pass


def _models(definition: Definition, providers: Collection[str], location: Location) -> Iterator[tuple[Location, str]]:
    match definition:
        case Agent():
            if definition.model is not None:
                at = location.at(field="provider" if definition.provider else "model")
                yield at, _with_provider(definition.model, definition.provider, providers)
            for name in definition.fallback_models:
                yield location.at(field="fallback_models"), name
        case Orchestration():
            for step in definition.steps:
                if isinstance(step, (LlmStep, AgentStep, ToolStep, EvaluatorStep)):
                    if step.model is not None:
                        yield location.at(step=step.id, field="model"), step.model
                    for name in step.fallback_models:
                        yield location.at(step=step.id, field="fallback_models"), name
        case _:
            return


def _with_provider(name: str, provider: str | None, known: Collection[str]) -> str:
    return name if not provider or name.partition(":")[0] in known else f"{provider}:{name}"


def _check_model(name: str, environment: Environment, location: Location, problems: Problems) -> None:
    if not environment.scripted_models and name.partition(":")[0] == SCRIPTED:
        # The error is tolerable because a bundle may be imported before its models are replaced.
        problems.error(
            location,
            f'The model "{name}" cannot be used: scripted models are disabled in this installation. Choose another '
            "model, or ask an operator to set RUNLANE_SCRIPTED_MODELS=true.",
            tolerable=True,
        )
        return
    resolved = resolve_model(name, environment.providers)
    if resolved.name is not None:
        return
    prefix, separator, _ = name.partition(":")
    if resolved.candidates:
        problems.warn(
            location,
            f'The model "{name}" has no provider, and more than one may serve it. '
            f"Write {' or '.join(resolved.candidates)}.",
        )
    elif separator:
        problems.warn(
            location,
            f'The model "{name}" has an unknown provider "{prefix}"{near(prefix, environment.providers)}. Providers: '
            f"{listing(sorted(environment.providers))}. Add it to RUNLANE_PROVIDERS, or register it in code.",
        )
    else:
        problems.warn(
            location,
            f'The model "{name}" has no provider. Write PROVIDER:{name}. Providers: '
            f"{listing(sorted(environment.providers))}.",
        )


def _check_address(url: str, allowed: AllowList, location: Location, problems: Problems) -> None:
    try:
        parts = urlsplit(url)
        host, port = normal_host(parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        # The checks of tools and servers report this problem.
        return
    if not host or "{" in host or allowed.has_host(host, port):
        return
    address = literal(host)
    if address is not None:
        reason = None if allowed.has_address(address, port) else refusal(address)
    elif odd_number(host):
        reason = "a number that resolves to an address"
    else:
        reason = "this machine" if host == "localhost" or host.endswith(".localhost") else None
        if reason is not None and any(allowed.has_address(loopback, port) for loopback in _LOOPBACK):
            reason = None
    if reason is not None:
        shown = f"[{host}]" if ":" in host else host
        problems.warn(
            location,
            f'Calls to "{host}" are refused: it is {reason}. To allow them, set '
            f"RUNLANE_OUTBOUND_ALLOW={shown}:{port} on the workers.",
        )
