"""Dashboards, their folders and a data source into a running Grafana. Pushing twice changes nothing."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traincope.errors import ServerError
from traincope_dashboards.board import TAG, Look
from traincope_dashboards.build import RUNBOOK_TAG, dashboards, pages
from traincope_dashboards.grafana import Grafana, Json

MESSAGE = "traincope dashboards push"
"""Noted beside each version in Grafana; a version without it was saved by somebody else."""
FOLDERS = {TAG: "traincope", RUNBOOK_TAG: "traincope runbooks"}
"""uid -> title."""
DATASOURCE_UID = "traincope-prometheus"
IN_GRAFANA = ("id", "version")
"""What Grafana itself adds to a dashboard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of one thing."""

    what: str
    """e.g. "folder traincope"."""
    how: str
    """created, updated, or unchanged."""


def push(grafana: Grafana, *, look: Look, prometheus: str | None = None, overwrite: bool = False) -> Iterator[Done]:
    """Each thing as it is done; `prometheus` is the URL of a Prometheus as Grafana's server reaches it.

    Raises ServerError; also where a dashboard has been edited in Grafana since, unless `overwrite`.
    """
    for uid, title in FOLDERS.items():
        yield _folder(grafana, uid, title=title)
    if prometheus is not None:
        yield _datasource(grafana, url=prometheus, viewer=look.viewer)
    for folder, built in ((TAG, dashboards(look)), (RUNBOOK_TAG, pages(look))):
        for uid, text in built.items():
            yield _dashboard(grafana, uid, model=json.loads(text), folder=folder, overwrite=overwrite)


def datasource(*, url: str, viewer: str) -> dict[str, object]:
    """As Grafana's API has it; a dot of an exemplar leads to its step in the viewer."""
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


def _folder(grafana: Grafana, uid: str, *, title: str) -> Done:
    found = grafana.find(f"/folders/{uid}")
    if found is None:
        grafana.create("/folders", {"uid": uid, "title": title})
    return Done(what=f"folder {title}", how="created" if found is None else "unchanged")


def _datasource(grafana: Grafana, *, url: str, viewer: str) -> Done:
    wanted = datasource(url=url, viewer=viewer)
    found = grafana.find(f"/datasources/uid/{DATASOURCE_UID}")
    if found is None:
        grafana.create("/datasources", wanted)
    elif not _holds(found, wanted):
        grafana.change(f"/datasources/uid/{DATASOURCE_UID}", wanted)
    return Done(what=f"data source {TAG}", how=_how(found, wanted))


def _dashboard(grafana: Grafana, uid: str, *, model: dict[str, object], folder: str, overwrite: bool) -> Done:
    found = grafana.find(f"/dashboards/uid/{uid}")
    what = f"dashboard {model['title']}"
    there = _model(found)
    if found is not None and there is not None and _is_in(found, folder) and _without(there) == _without(model):
        return Done(what=what, how="unchanged")
    if there is not None:
        if not overwrite:
            _refuse_edited(grafana, uid, what=what)
        model = {**model, "version": there.get("version")}
    content = {"dashboard": model, "folderUid": folder, "message": MESSAGE, "overwrite": overwrite}
    grafana.create("/dashboards/db", content)
    return Done(what=what, how="created" if there is None else "updated")


def _refuse_edited(grafana: Grafana, uid: str, *, what: str) -> None:
    """Raises ServerError where somebody else has saved the dashboard since the last push."""
    versions = grafana.find(f"/dashboards/uid/{uid}/versions") or {}
    # A list in Grafana 10, an object with one in Grafana 11.
    known = versions.get("items", versions.get("versions"))
    latest = known[0] if isinstance(known, list) and known else None
    if isinstance(latest, Mapping) and latest.get("message") != MESSAGE:
        raise ServerError(
            f"{what} was edited in Grafana by {latest.get('createdBy')} (version {latest.get('version')});"
            " save that under another name to keep it, then push --overwrite"
        )


def _model(found: Json | None) -> Mapping[str, object] | None:
    if found is None:
        return None
    model = found.get("dashboard")
    if not isinstance(model, Mapping):
        raise ServerError("Grafana's answer holds no dashboard; is it older than version 10?")
    return model


def _is_in(found: Json, folder: str) -> bool:
    meta = found.get("meta")
    return isinstance(meta, Mapping) and meta.get("folderUid") == folder


def _without(model: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in model.items() if name not in IN_GRAFANA}


def _holds(found: Json, wanted: Json) -> bool:
    return all(found.get(name) == value for name, value in wanted.items())


def _how(found: Json | None, wanted: Json) -> str:
    if found is None:
        return "created"
    return "unchanged" if _holds(found, wanted) else "updated"
