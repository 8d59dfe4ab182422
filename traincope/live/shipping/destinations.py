"""Destinations of a run on this node: from the environment of its agent, or as an earlier agent wrote them down."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import UsageError
from traincope.live.shipping.archiving import Archives
from traincope.live.shipping.targets import Directory, Target
from traincope.record.session.options import OFF, SHIP_VARIABLE
from traincope.store.lines import parse
from traincope.store.places.node_local import named_run
from traincope.store.places.remote import RemoteFiles, check_url, url_of
from traincope.store.places.ship_notes import NAMED_VARIABLE
from traincope.whole_files import write_whole

FILE = ".destinations.json"
"""Where the run of this directory is shipped. URLs have no passwords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destinations:
    """Where the files of this node go."""

    named: Path | None
    """The run directory that users know, if the records are elsewhere."""
    url: str | None
    """The URL of the run."""

    @property
    def has_any(self) -> bool:
        return self.named is not None or self.url is not None

    def targets(self) -> list[Target]:
        """Open all, for the files of one host. Raises UsageError, MissingDependencyError."""
        named: list[Target] = [] if self.named is None else [Directory(self.named)]
        return [*named, *([] if self.url is None else [Archives(RemoteFiles(self.url))])]


def destinations(run: Path, environment: Mapping[str, str]) -> Destinations:
    """Return where the agent ships `run`, and write it down for later agents. Raises OSError, UsageError.

    Only without the variable of the URL, as for an agent that was started by hand, the one of an earlier agent counts.
    """
    named, url = environment.get(NAMED_VARIABLE), environment.get(SHIP_VARIABLE)
    known = known_destinations(run)
    if url and url.lower() in OFF:
        run_there = None
    else:
        run_there = run_url(url, Path(named) if named else run) if url else known.url
    chosen = Destinations(named=Path(named) if named else known.named, url=run_there)
    if chosen != known:
        content = {"named": None if chosen.named is None else str(chosen.named), "url": chosen.url}
        write_whole(run / FILE, json.dumps(content).encode(), mode=0o600)
    return chosen


def run_url(url: str, run: Path) -> str:
    """URL of a run: below the given URL, with the name of its directory. Raises UsageError."""
    complete = url_of(url)
    if complete is None:
        raise UsageError(f"{url} is not a URL; give one such as s3://bucket/runs")
    check_url(complete)
    return f"{complete.rstrip('/')}/{run.name}"


def known_destinations(run: Path) -> Destinations:
    """Destinations as an earlier agent wrote them down; none without one."""
    try:
        raw = parse((run / FILE).read_text())
    except OSError:
        raw = None
    values = raw if isinstance(raw, dict) else {}
    named, url = values.get("named"), values.get("url")
    if named is None:
        named = named_run(run)
        named = None if named is None else str(named)
    return Destinations(
        named=Path(named) if isinstance(named, str) else None, url=url if isinstance(url, str) else None
    )


def require(chosen: Destinations, run: Path) -> None:
    """Raise UsageError if there is nowhere to ship to."""
    if not chosen.has_any:
        raise UsageError(f"{run} is not shipped anywhere; give a URL, e.g. s3://bucket/runs")
