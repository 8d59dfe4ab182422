"""Runs by name: by any unique beginning of it, or the newest."""

from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from pathlib import Path

from traincope.errors import NotARunError, RunDirectoryError
from traincope.store.job.manifests import MARK, read_run_info
from traincope.store.layout import DEFAULT_ROOT, RUN_FILE
from traincope.store.places.remote import url_of

MAX_LISTED = 5


def run_by_name(path: Path) -> Path:
    """Return `path` if it exists, otherwise the only run whose name begins with its last part.

    The run is next to it; for a bare name also below `traincope_runs`. A whole name has precedence over the beginning
    of another. A run's label in metrics is as good as its name. Returns `path` if no run matches. Raises NotARunError
    if several do.
    """
    if url_of(path) is not None or path.exists() or not path.name:
        return path
    parents = [path.parent, *([Path(DEFAULT_ROOT)] if path == Path(path.name) else [])]
    found = [run for parent in parents for run in sorted(_runs_in(parent, f"{escape(path.name)}*"))]
    whole = [run for run in found if run.name == path.name]
    candidates = whole or found or [run for parent in parents for run in _labelled(parent, path.name)]
    if len(candidates) > 1:
        listed = ", ".join(str(run) for run in candidates[:MAX_LISTED]) + ", ..." * (len(candidates) > MAX_LISTED)
        raise NotARunError(f"{len(candidates)} runs begin with {path} ({listed}); give more of the name")
    return candidates[0] if candidates else path


def _labelled(parent: Path, label: str) -> Iterator[Path]:
    """Yield the run of this label."""
    name, mark, _ = label.rpartition(MARK)
    for run in _runs_in(parent, escape(name)) if mark else ():
        with suppress(RunDirectoryError):
            if read_run_info(run).label == label:
                yield run


def newest_run(root: Path = Path(DEFAULT_ROOT)) -> Path:
    """Return the run directly below `root` that began last. Raises NotARunError without one."""
    began = []
    for run in _runs_in(root, "*"):
        try:
            began.append((read_run_info(run).started_wall_ns, run))
        except RunDirectoryError:
            continue
    if not began:
        raise NotARunError(f"there is no run below {root} here; give a run directory, or record one: traincope run")
    return max(began)[1]


def _runs_in(parent: Path, pattern: str) -> Iterator[Path]:
    return (manifest.parent for manifest in parent.glob(f"{pattern}/{RUN_FILE}"))
