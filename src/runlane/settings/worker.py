"""Settings of execution: workers, leases, size limits, the sandbox, outbound calls."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from runlane.addresses import parse_allow_list
from runlane.settings.group import SettingsGroup


class WorkerSettings(SettingsGroup):
    """How workers execute runs, how lost workers are detected, and what runs may consume."""

    concurrency: int = Field(default=50, ge=1, le=10_000, description="Runs that one worker executes at once.")
    grace_seconds: float = Field(default=30.0, ge=0, description="How long a stopping worker lets its runs finish.")
    drain_handover: Literal["late", "immediate"] = Field(
        default="late",
        description="When a stopping worker hands its orchestrations over: late, shortly before the grace period ends, "
        "or immediate, after the current step.",
    )
    cancel_grace_seconds: float = Field(
        default=30.0,
        ge=0,
        description="How long cancelled code may take to stop before its run ends without it.",
    )
    worker_health_host: str = Field(
        default="127.0.0.1", description="Address of the health endpoint; 0.0.0.0 for probes from other hosts."
    )
    worker_health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of the health endpoint; 0 disables it. Default: 9000, or a free port if 9000 is taken.",
    )

    pod_deletion_cost: bool = Field(
        default=False,
        description="Whether a worker in Kubernetes annotates its own pod with the number of its runs, so that idle "
        "pods are removed first. Its service account must be allowed to patch pods.",
    )
    pod_name: str | None = Field(
        default=None, max_length=253, pattern=r"^[a-z0-9.-]+$", description="Name of the pod. Default: the host name."
    )

    lease_seconds: float = Field(
        default=15.0, ge=2, le=3600, description="A worker that has not renewed its lease for this long is lost."
    )
    heartbeat_seconds: float = Field(default=0.5, ge=0.05, description="How often a worker renews its lease.")
    stall_seconds: float | None = Field(
        default=None,
        gt=0,
        description="A worker whose event loop is blocked for longer abandons its runs. Default: four leases.",
    )
    reaper_seconds: float = Field(
        default=0.5,
        ge=0.05,
        description="How often a process searches for lost workers while processes cannot wake each other. "
        "Otherwise each heartbeat looks for them.",
    )
    silence_seconds: float = Field(
        default=1.0,
        ge=0.2,
        description="A worker whose liveness lock is free is lost after this time without a heartbeat.",
    )
    timer_seconds: float = Field(
        default=0.25,
        ge=0.02,
        description="How often a process searches for due runs while processes cannot wake each other. "
        "Otherwise each heartbeat looks for them.",
    )

    max_losses: int = Field(
        default=10,
        ge=0,
        le=1000,
        description="Workers that may be lost while they execute a run before the run fails. Tasks and definitions can "
        "lower this bound, not raise it.",
    )
    max_lanes_per_tenant: int = Field(
        default=50,
        ge=0,
        le=10_000,
        description="New lanes that the definitions of one tenant may name. Existing lanes do not count.",
    )
    max_input_bytes: int = Field(
        default=1024 * 1024, ge=1024, description="Maximum size of the input of a run, as JSON."
    )
    max_result_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="Maximum size of a result or checkpoint."
    )
    max_step_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="Maximum size of a rendered string, prompt or set of arguments, and of the output of a step, in an "
        "orchestration.",
    )
    max_run_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=64 * 1024,
        description="Maximum size of what one attempt of an orchestration or a graph writes: events, step records, "
        "checkpoints.",
    )
    worker_text_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1024 * 1024,
        description="Memory for the orchestration runs of one worker: states, rendered text, events that are not "
        "stored yet. One tenant uses at most half of it.",
    )

    sandbox_condition_seconds: float = Field(
        default=2.0, gt=0, le=60, description="Computing time of a condition or expression of an orchestration."
    )
    sandbox_script_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Computing time of a transform step's script."
    )
    sandbox_memory_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=8 * 1024 * 1024,
        description="Memory limit of one condition, script or Python tool.",
    )
    sandbox_output_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="Maximum size of the value of a condition, script or Python tool, as JSON.",
    )
    sandbox_processes: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Maximum number of sandbox processes per worker. One tenant uses all but one; scripts and Python "
        "tools leave one more free for conditions.",
    )
    outbound_allow: str | None = Field(
        default=None,
        max_length=20_000,
        description="Destinations that tools, MCP servers and webhooks may call although they are not public: names, "
        "name:port, addresses and networks, such as 127.0.0.1:8080,10.0.0.0/8,internal.example.",
    )
    webhooks: bool = Field(
        default=True,
        description="Whether this process delivers webhooks. Messages are stored either way, and any process may "
        "deliver them.",
    )
    webhook_concurrency: int = Field(
        default=50,
        ge=1,
        le=1000,
        description="Webhooks that one process delivers at once: to one endpoint at most three fifths of them, for one "
        "tenant four fifths.",
    )
    webhook_timeout_seconds: float = Field(
        default=20.0, ge=0.5, le=60, description="How long one try of a webhook may take in total."
    )
    max_webhook_endpoints: int = Field(
        default=50, ge=0, le=200, description="Maximum number of webhook endpoints of one tenant."
    )
    mcp_stdio: bool = Field(
        default=False,
        description="Lets definitions of MCP servers start programs on the machine of the worker. Only for workers "
        "whose definitions all come from people who may do so; `runlane dev` sets it.",
    )

    @model_validator(mode="after")
    def _check_lease(self) -> Self:
        if self.lease_seconds < 3 * self.heartbeat_seconds:
            raise ValueError(
                f"lease_seconds={self.lease_seconds:g} must be at least three times "
                f"heartbeat_seconds={self.heartbeat_seconds:g}, or one late heartbeat loses every run"
            )
        if self.stall_seconds is not None and self.stall_seconds < self.lease_seconds:
            raise ValueError(
                f"RUNLANE_STALL_SECONDS={self.stall_seconds:g} must be at least lease_seconds={self.lease_seconds:g}, "
                "or a worker abandons runs that its lease still covers"
            )
        return self

    @field_validator("outbound_allow")
    @classmethod
    def _check_allowed(cls, text: str | None) -> str | None:
        parse_allow_list(text or "")
        return text
