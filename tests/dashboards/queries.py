"""The queries of built dashboards and rules, and what they are made of."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from traincope.metrics import BY_PROMETHEUS
from traincope_dashboards.recorded import RECORDED

VARIABLES = {"$run": "job-1", "$host": ".*", "$rank": ".*", "$axis": ".*", "$__rate_interval": "5s"}
"""As Grafana would fill them in, "All" chosen."""
PARTS = ("_bucket", "_count", "_sum")
LABELS_OF = {name: set(metric.labels) for name, metric in BY_PROMETHEUS.items()} | {
    rule.name: set(rule.labels) for rule in RECORDED
}
"""Series name -> its labels, for the catalogue's metrics and what rules record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A panel's query."""

    where: str
    expression: str
    """Variables are filled in."""
    legend: str
    panel: dict[str, Any]


def targets(dashboard: str) -> Iterator[Target]:
    """Of a dashboard's JSON."""
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
    """Names of series that a query asks for, a histogram's without its part."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expression)
    found = set(re.findall(r"\b(?:traincope_|run(?:_\w+)?:)[\w:]+", bare))
    return {_whole(name) for name in found}


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
