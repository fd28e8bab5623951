"""The arithmetic of the horizontal pod autoscaler, to try a configuration on a trace of demand without a cluster.

Kubernetes documents it: the wanted number is ceil(current * metric / target) unless the ratio is within a tolerance,
stabilised over a window (the highest recommendation for scaling down), and bounded by policies per period. KEDA adds
the step between zero and one replica.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_TOLERANCE: Final = 0.1


@dataclass
class Autoscaler:
    """One scaled object, driven by a clock in seconds."""

    target: float
    minimum: int
    maximum: int
    behavior: Mapping[str, Any]
    cooldown_seconds: float
    replicas: int
    _recommended: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    _changes: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    _active_at: float = -math.inf

    def step(self, now: float, wanted_slots: float) -> int:
        """Return the number of replicas after one reading of the metric."""
        if wanted_slots > 0:
            self._active_at = now
        if self.replicas == 0:
            # Activation: the first ready run starts one replica.
            self._set(now, 1 if wanted_slots > 0 else 0)
            return self.replicas
        if self.minimum == 0 and wanted_slots == 0 and now - self._active_at >= self.cooldown_seconds:
            self._set(now, 0)
            return self.replicas
        recommended = self._recommendation(wanted_slots)
        self._recommended.append((now, recommended))
        self._set(now, self._bounded(now, self._stabilized(now, recommended)))
        return self.replicas

    def _recommendation(self, wanted_slots: float) -> int:
        # AverageValue: the metric is divided by the current number of replicas.
        ratio = wanted_slots / self.replicas / self.target
        wanted = self.replicas if abs(ratio - 1) <= _TOLERANCE else math.ceil(wanted_slots / self.target)
        return min(self.maximum, max(1, self.minimum, wanted))

    def _stabilized(self, now: float, recommended: int) -> int:
        def window(direction: str) -> list[int]:
            seconds = self.behavior[direction].get("stabilizationWindowSeconds", 0)
            return [count for at, count in self._recommended if now - at <= seconds] or [recommended]

        up, down = min(window("scaleUp")), max(window("scaleDown"))
        return max(up, min(self.replicas, down)) if up > self.replicas else max(recommended, min(self.replicas, down))

    def _bounded(self, now: float, wanted: int) -> int:
        if wanted > self.replicas:
            return min(wanted, self._limit(now, self.behavior["scaleUp"]["policies"], 1))
        if wanted < self.replicas:
            return max(wanted, self._limit(now, self.behavior["scaleDown"]["policies"], -1))
        return wanted

    def _limit(self, now: float, policies: Sequence[Mapping[str, Any]], sign: int) -> int:
        """Return how far the policies let the number go in this period; the policy that allows most counts."""
        limits: list[int] = []
        for policy in policies:
            changed = sum(by for at, by in self._changes if now - at < policy["periodSeconds"] and by * sign > 0)
            before = self.replicas - changed
            share = before * policy["value"] / 100 if policy["type"] == "Percent" else policy["value"]
            limits.append(math.ceil(before + share) if sign > 0 else math.floor(before - share))
        return max(limits) if sign > 0 else min(limits)

    def _set(self, now: float, replicas: int) -> None:
        if replicas != self.replicas:
            self._changes.append((now, replicas - self.replicas))
            self.replicas = replicas
