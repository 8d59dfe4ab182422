"""Pushing dashboards, their folders and a data source into a running Grafana. A second push changes nothing."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traincope.errors import ServerError
from traincope_dashboards.build import RUNBOOK_TAG, dashboards, pages
from traincope_dashboards.grafana import Grafana, Json
from traincope_dashboards.panels.board import TAG, Look

MESSAGE = "traincope dashboards push"
"""Message of each version in Grafana; a version without it was saved by a user."""
FOLDERS = {TAG: "traincope", RUNBOOK_TAG: "traincope runbooks"}
"""uid -> title."""
DATASOURCE_UID = "traincope-prometheus"
IN_GRAFANA = ("id", "version")
"""Fields that Grafana itself adds to a dashboard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of pushing one object."""

    subject: str
    """e.g. "folder traincope"."""
    change: str
    """created, updated, or unchanged."""


def push(grafana: Grafana, *, look: Look, prometheus: str | None = None, overwrite: bool = False) -> Iterator[Outcome]:
    """Push everything, and yield each result. `prometheus` is the URL of a Prometheus as seen from Grafana's server.

    Raises ServerError, also if a dashboard was edited in Grafana since the last push, unless `overwrite` is set.
    """
    for uid, title in FOLDERS.items():
        yield _folder(grafana, uid, title=title)
    if prometheus is not None:
        yield _datasource(grafana, url=prometheus, viewer=look.viewer)
    for folder, built in ((TAG, dashboards(look)), (RUNBOOK_TAG, pages(look))):
        for uid, text in built.items():
            yield _dashboard(grafana, uid, model=json.loads(text), folder=folder, overwrite=overwrite)


def datasource(*, url: str, viewer: str) -> dict[str, object]:
    """A data source for Grafana's API; the dots of exemplars link to their step in the viewer."""
    link = {
        "name": "step",
        "url": f"{viewer.rstrip('/')}/timeline?step=${{__value.raw}}",
        "urlDisplayLabel": "this step in the viewer",
    }
    return {
        "uid": DATASOURCE_UID,
        "name": TAG,
        "type": "prometheus",
        "access": "proxy",
        "url": url,
        "jsonData": {"httpMethod": "POST", "timeInterval": "15s", "exemplarTraceIdDestinations": [link]},
    }


def _folder(grafana: Grafana, uid: str, *, title: str) -> Outcome:
    current = grafana.find(f"/folders/{uid}")
    if current is None:
        grafana.create("/folders", {"uid": uid, "title": title})
    return Outcome(subject=f"folder {title}", change="created" if current is None else "unchanged")


def _datasource(grafana: Grafana, *, url: str, viewer: str) -> Outcome:
    desired = datasource(url=url, viewer=viewer)
    current = grafana.find(f"/datasources/uid/{DATASOURCE_UID}")
    if current is None:
        grafana.create("/datasources", desired)
    elif not _contains(current, desired):
        grafana.change(f"/datasources/uid/{DATASOURCE_UID}", desired)
    return Outcome(subject=f"data source {TAG}", change=_change(current, desired))


def _dashboard(grafana: Grafana, uid: str, *, model: dict[str, object], folder: str, overwrite: bool) -> Outcome:
    current = grafana.find(f"/dashboards/uid/{uid}")
    subject = f"dashboard {model['title']}"
    model_in_grafana = _model(current)
    if (
        current is not None
        and model_in_grafana is not None
        and _is_in(current, folder)
        and _content(model_in_grafana) == _content(model)
    ):
        return Outcome(subject=subject, change="unchanged")
    if model_in_grafana is not None:
        if not overwrite:
            _refuse_edited(grafana, uid, subject=subject)
        model = {**model, "version": model_in_grafana.get("version")}
    content = {"dashboard": model, "folderUid": folder, "message": MESSAGE, "overwrite": overwrite}
    grafana.create("/dashboards/db", content)
    return Outcome(subject=subject, change="created" if model_in_grafana is None else "updated")


def _refuse_edited(grafana: Grafana, uid: str, *, subject: str) -> None:
    """Raise ServerError if a user saved the dashboard in Grafana since the last push."""
    versions = grafana.find(f"/dashboards/uid/{uid}/versions") or {}
    # Grafana 10 answers with a list, Grafana 11 with an object that contains one.
    known = versions.get("items", versions.get("versions"))
    latest = known[0] if isinstance(known, list) and known else None
    if isinstance(latest, Mapping) and latest.get("message") != MESSAGE:
        raise ServerError(
            f"{subject} was edited in Grafana by {latest.get('createdBy')} (version {latest.get('version')});"
            " save that under another name to keep it, then push --overwrite"
        )


def _model(current: Json | None) -> Mapping[str, object] | None:
    if current is None:
        return None
    model = current.get("dashboard")
    if not isinstance(model, Mapping):
        raise ServerError("Grafana's answer does not contain a dashboard; is it older than version 10?")
    return model


def _is_in(current: Json, folder: str) -> bool:
    meta = current.get("meta")
    return isinstance(meta, Mapping) and meta.get("folderUid") == folder


def _content(model: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in model.items() if name not in IN_GRAFANA}


def _contains(current: Json, desired: Json) -> bool:
    return all(current.get(name) == value for name, value in desired.items())


def _change(current: Json | None, desired: Json) -> str:
    if current is None:
        return "created"
    return "unchanged" if _contains(current, desired) else "updated"
