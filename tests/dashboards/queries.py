"""Queries of built dashboards and rules, and their parts."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from traincope.metrics.catalogue import BY_PROMETHEUS
from traincope_dashboards import foreign
from traincope_dashboards.rules.recorded import RECORDED

VARIABLES = {"$run": "job-1", "$host": ".*", "$rank": ".*", "$axis": ".*", "$__rate_interval": "5s"}
"""Values that Grafana would fill in, with "All" chosen."""
PARTS = ("_bucket", "_count", "_sum")
LABELS_OF = (
    {name: set(metric.labels) for name, metric in BY_PROMETHEUS.items()}
    | {rule.name: set(rule.labels) for rule in RECORDED}
    | {name: set(labels) for name, labels in foreign.LABELS.items()}
)
"""Series name -> its labels, for the catalogue's metrics, recorded rules and other exporters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A query of a panel."""

    where: str
    expression: str
    """PromQL with variables filled in."""
    legend: str
    panel: dict[str, Any]


def targets(dashboard: str) -> Iterator[Target]:
    """Queries in a dashboard's JSON."""
    built = json.loads(dashboard)
    for panel in built["panels"]:
        for target in panel.get("targets", ()):
            yield Target(
                where=f"{built['title']}, {panel['title']}, {target['refId']}",
                expression=filled_in(target["expr"]),
                legend=target.get("legendFormat", ""),
                panel=panel,
            )


def filled_in(text: str) -> str:
    for variable, value in VARIABLES.items():
        text = text.replace(variable, value)
    return text


def series_names(expression: str) -> set[str]:
    """Names of the series in a query; for a histogram without its suffix."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expression)
    names = set(re.findall(r"\b(?:traincope_|run(?:_\w+)?:|DCGM_|kube_)[\w:]+", bare))
    return {_whole(name) for name in names}


def labels(expression: str) -> set[str]:
    """Labels that a query matches or groups by."""
    matched = {
        label for inside in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)(?==|!)", inside)
    }
    grouped = re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right) \(([^)]*)\)", expression)
    return matched | {label.strip() for inside in grouped for label in inside.split(",") if label.strip()}


def _whole(name: str) -> str:
    if name in LABELS_OF:
        return name
    return next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
