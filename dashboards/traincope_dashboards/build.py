"""Building all files from the catalogue: dashboards for Grafana, rules for Prometheus."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from traincope.errors import UsageError
from traincope.whole_files import output
from traincope_dashboards import runbooks
from traincope_dashboards.boards import BOARDS
from traincope_dashboards.panels.board import Look, page, render
from traincope_dashboards.rules.alerts import alerts
from traincope_dashboards.rules.limits import Limits
from traincope_dashboards.rules.rules import alerting, recording

DASHBOARDS, RUNBOOKS, RULES = "grafana/dashboards", "grafana/runbooks", "prometheus"
"""Output directories."""
RUNBOOK_TAG = "traincope-runbook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    look: Look = field(default_factory=Look)
    limits: Limits = field(default_factory=Limits)


def build(settings: Settings) -> dict[str, str]:
    """Relative path -> text of every file."""
    return {
        **{f"{DASHBOARDS}/{name}.json": text for name, text in dashboards(settings.look).items()},
        **{f"{RUNBOOKS}/{name}.json": text for name, text in pages(settings.look).items()},
        **rules(settings),
    }


def dashboards(look: Look) -> dict[str, str]:
    """Dashboards: uid -> JSON."""
    return {board.uid: render(board, look) for board in BOARDS}


def pages(look: Look) -> dict[str, str]:
    """Dashboards of the runbooks: uid -> JSON."""
    return {runbooks.UID + name: _page(name, look) for name in runbooks.names()}


def rules(settings: Settings) -> dict[str, str]:
    limits = settings.limits
    return {
        f"{RULES}/recording.yaml": recording(limits),
        f"{RULES}/alerts.yaml": alerting(alerts(limits), limits=limits, grafana=settings.look.grafana.rstrip("/")),
    }


def write(files: Mapping[str, str], directory: Path) -> None:
    """Write the files below `directory`. Raises UsageError if it cannot be written."""
    for name, text in files.items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with output(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}; give another directory with -o") from error


def _page(name: str, look: Look) -> str:
    return page(
        runbooks.UID + name,
        title=runbooks.title(name),
        about="Meaning of the alert, how to check it, and what to do.",
        markdown=runbooks.markdown(name, grafana=look.grafana.rstrip("/")),
        tag=RUNBOOK_TAG,
    )
