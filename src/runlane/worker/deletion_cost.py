"""Pod deletion cost: a worker in Kubernetes annotates its own pod with the cost of its removal.

A ReplicaSet that shrinks removes the pods with the lowest cost first, so idle workers go before busy ones. The
annotation is a hint: a busy worker that is removed nevertheless hands its runs back. Errors are logged and retried.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import structlog

from runlane.errors import ConfigurationError
from runlane.settings import Settings

log = structlog.get_logger(__name__)

ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
# The API server is shared by the whole cluster, so a pod changes its annotation rarely.
PATCH_SECONDS: Final = 15.0
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pod:
    """This pod and the address of the API server. The token is read for each request, because it is rotated."""

    host: str
    port: int
    namespace: str
    name: str
    account: Path

    @classmethod
    def of(cls, settings: Settings, environment: Mapping[str, str], account: Path = _ACCOUNT) -> Self:
        """Return the pod of this process."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if host is None or not (account / "token").exists():
            raise ConfigurationError(
                "RUNLANE_POD_DELETION_COST is set, but this process has no service account of Kubernetes. Mount the "
                "token of a service account that may patch pods, or unset the variable."
            )
        namespace = (account / "namespace").read_text().strip()
        name = settings.pod_name or socket.gethostname()
        return cls(host, int(environment.get("KUBERNETES_SERVICE_PORT") or 443), namespace, name, account)

    def annotate(self, cost: int) -> str | None:
        """Store the cost. Return the problem if that fails."""
        # Imported here, because most workers have no pod to annotate.
        from http.client import HTTPException, HTTPSConnection

        context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        connection = HTTPSConnection(self.host, self.port, context=context, timeout=_TIMEOUT_SECONDS)
        token = (self.account / "token").read_text().strip()
        try:
            connection.request(
                "PATCH",
                f"/api/v1/namespaces/{self.namespace}/pods/{self.name}",
                body=json.dumps({"metadata": {"annotations": {ANNOTATION: str(cost)}}}),
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
            )
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            return str(error) or type(error).__name__
        finally:
            connection.close()
        return None if status == 200 else f"the API server answered {status}"


class DeletionCost:
    """Keeps the annotation of a pod up to date. start() and stop() once each."""

    def __init__(self, pod: Pod, count_active: Callable[[], int], seconds: float = PATCH_SECONDS) -> None:
        self._pod = pod
        self._count_active = count_active
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="runlane-deletion-cost")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        stored: int | None = None
        while True:
            active = self._count_active()
            # An idle worker costs nothing, and one with a single run more than an idle one.
            cost = 0 if active == 0 else 1 + active
            if cost != stored:
                problem = await asyncio.to_thread(self._pod.annotate, cost)
                stored = cost if problem is None else stored
                if problem is not None:
                    log.warning("deletion_cost_not_stored", error=problem)
            await asyncio.sleep(self._seconds)


def deletion_cost(settings: Settings, count_active: Callable[[], int]) -> DeletionCost | None:
    """Return the service for this process; None unless the settings ask for it."""
    if not settings.pod_deletion_cost:
        return None
    return DeletionCost(Pod.of(settings, os.environ), count_active)
