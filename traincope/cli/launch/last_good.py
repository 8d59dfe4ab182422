"""The default run to compare with: the last good run in the same directory."""

from pathlib import Path

from traincope.analysis import Analysis, analyze
from traincope.errors import NotARunError, RunDirectoryError
from traincope.events import CLEAN
from traincope.store.job.manifests import read_run_info
from traincope.store.layout import RUN_FILE
from traincope.store.reading import find_run
from traincope.timeline import open_run


def last_good(path: Path) -> tuple[Path, Analysis]:
    """Return the newest earlier run in the same parent directory that ended cleanly and has counted steps.

    Raises NotARunError if no run qualifies.
    """
    run = find_run(path).resolve()
    began_ns = read_run_info(run).started_wall_ns
    earlier = [(at_ns, other) for at_ns, other in _neighbours(run) if at_ns < began_ns]
    for _, other in sorted(earlier, reverse=True):
        analysis = _if_good(other)
        if analysis is not None:
            return other, analysis
    raise NotARunError(
        f"no earlier run next to {run} ended cleanly with counted steps; give the run to compare with: RUN_A RUN_B"
    )


def _neighbours(run: Path) -> list[tuple[int, Path]]:
    """Start and path of the readable recorded runs in the same parent directory."""
    runs = []
    for manifest in run.parent.glob(f"*/{RUN_FILE}"):
        try:
            info = read_run_info(manifest.parent)
        except RunDirectoryError:
            continue
        if manifest.parent != run and not info.imported:
            runs.append((info.started_wall_ns, manifest.parent))
    return runs


def _if_good(run: Path) -> Analysis | None:
    try:
        timeline = open_run(run)
    except RunDirectoryError:
        return None
    well = not timeline.run.missing and all(rank.ending == CLEAN for rank in timeline.ranks)
    analysis = analyze(timeline) if well else None
    return analysis if analysis is not None and analysis.ledger.rank_steps else None
