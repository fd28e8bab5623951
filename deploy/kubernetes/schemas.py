"""Strict schemas of the custom objects in the chart, with the fields that it uses.

The definitions of KEDA and of the Prometheus operator are large and change with their versions. These schemas list what
the chart uses of them, so that a misspelt field is detected without a cluster.
"""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final = {"type": "string", "minLength": 1}
_COUNT: Final = {"type": "integer", "minimum": 0}
_LABELS: Final = {"type": "object", "additionalProperties": _TEXT}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required or properties),
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


def _resource(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = _object(("name",), name=_TEXT, labels=_LABELS)
    return _object(apiVersion={"const": version}, kind={"const": kind}, metadata=metadata, spec=spec)


_POLICY: Final = _object(type={"enum": ["Pods", "Percent"]}, value=_COUNT, periodSeconds=_COUNT)
_SCALING: Final = _object(
    ("stabilizationWindowSeconds", "policies"),
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies=_list(_POLICY),
)
_TRIGGER: Final = _object(
    type={"const": "metrics-api"},
    metricType={"const": "AverageValue"},
    metadata=_object(
        url={"type": "string", "pattern": "^http://[^ ]+/api/v2/scaling\\?"},
        valueLocation={"const": "wanted_slots"},
        targetValue={"type": "string", "pattern": "^[1-9][0-9]*$"},
        activationTargetValue={"type": "string", "pattern": "^[0-9]+$"},
        authMode={"const": "bearer"},
    ),
    authenticationRef=_object(name=_TEXT),
)
_SELECTOR: Final = _object(matchLabels=_LABELS)
_KEY: Final = _object(name=_TEXT, key=_TEXT)
_ENDPOINT: Final = _object(
    ("port", "path", "interval"),
    port=_TEXT,
    path={"const": "/metrics"},
    interval={"type": "string", "pattern": "^[0-9]+s$"},
    authorization=_object(credentials=_KEY),
)
_RULE: Final = _object(
    ("alert", "expr", "labels", "annotations"),
    alert=_TEXT,
    expr=_TEXT,
    labels=_object(severity={"enum": ["critical", "warning", "info", "none"]}),
    annotations=_object(summary=_TEXT, runbook=_TEXT),
    **{"for": {"type": "string", "pattern": "^[0-9]+[mh]$"}},
)

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "ScaledObject": _resource(
        "keda.sh/v1alpha1",
        "ScaledObject",
        _object(
            scaleTargetRef=_object(name=_TEXT),
            pollingInterval=_COUNT,
            cooldownPeriod=_COUNT,
            minReplicaCount=_COUNT,
            maxReplicaCount=_COUNT,
            fallback=_object(failureThreshold=_COUNT, replicas=_COUNT),
            advanced=_object(
                horizontalPodAutoscalerConfig=_object(behavior=_object(scaleUp=_SCALING, scaleDown=_SCALING))
            ),
            triggers=_list(_TRIGGER),
        ),
    ),
    "TriggerAuthentication": _resource(
        "keda.sh/v1alpha1",
        "TriggerAuthentication",
        _object(secretTargetRef=_list(_object(parameter={"const": "token"}, name=_TEXT, key=_TEXT))),
    ),
    "ServiceMonitor": _resource(
        "monitoring.coreos.com/v1", "ServiceMonitor", _object(selector=_SELECTOR, endpoints=_list(_ENDPOINT))
    ),
    "PodMonitor": _resource(
        "monitoring.coreos.com/v1", "PodMonitor", _object(selector=_SELECTOR, podMetricsEndpoints=_list(_ENDPOINT))
    ),
    "PrometheusRule": _resource(
        "monitoring.coreos.com/v1", "PrometheusRule", _object(groups=_list(_object(name=_TEXT, rules=_list(_RULE))))
    ),
}
