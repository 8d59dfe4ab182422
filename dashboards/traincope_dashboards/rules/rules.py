"""Rule files for Prometheus.

They are YAML whose texts are JSON strings, which are valid YAML, so writing them needs no library.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from traincope_dashboards import runbooks
from traincope_dashboards.rules.alert import Alert
from traincope_dashboards.rules.limits import Limits, duration
from traincope_dashboards.rules.recorded import RECORDED
from traincope_dashboards.scope import Scope

_OF_RUN = "?var-run={{ $labels.run | urlquery }}"


def recording(limits: Limits) -> str:
    """The file of recording rules."""
    scope = Scope(window=duration(limits.window_seconds))
    rules = ([f"record: {rule.name}", f"expr: {_text(rule.expression(scope))}"] for rule in RECORDED)
    return _file("traincope-recording", rules)


def alerting(alerts: Iterable[Alert], *, limits: Limits, grafana: str) -> str:
    """The file of alerting rules; `grafana` is the base URL of runbooks and dashboards."""
    rules = (_alert(rule, limits=limits, grafana=grafana) for rule in alerts)
    return _file("traincope-alerts", rules, interval=duration(limits.evaluation_seconds))


def _alert(alert: Alert, *, limits: Limits, grafana: str) -> list[str]:
    return [
        f"alert: {alert.full_name}",
        f"expr: {_text(alert.expression)}",
        *([f"for: {duration(alert.hold_seconds * limits.hold)}"] if alert.hold_seconds else []),
        "labels:",
        f"  severity: {alert.severity}",
        "annotations:",
        f"  summary: {_text(alert.summary)}",
        f"  description: {_text(alert.description)}",
        f"  runbook_url: {_text(runbooks.url(alert.slug, grafana=grafana))}",
        f"  dashboard_url: {_text(f'{grafana}/d/{alert.board}{_OF_RUN}')}",
    ]


def _file(group: str, rules: Iterable[Sequence[str]], *, interval: str | None = None) -> str:
    """`interval`: None for that of the server."""
    head = ["# Made by `traincope dashboards build`.", "groups:", f"  - name: {group}"]
    lines = [*head, *([f"    interval: {interval}"] if interval else []), "    rules:", *_items(rules)]
    return "\n".join(lines) + "\n"


def _items(rules: Iterable[Sequence[str]]) -> Iterator[str]:
    for first, *others in rules:
        yield f"      - {first}"
        yield from (f"        {line}" for line in others)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
