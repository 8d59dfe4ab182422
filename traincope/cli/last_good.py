"""The run to compare with, where none is named: the last good one beside it."""

from pathlib import Path

from traincope.analysis import Analysis, analyze
from traincope.errors import NotARunError, RunDirectoryError
from traincope.events import CLEAN
from traincope.store.cards import read_run_info
from traincope.store.layout import RUN_FILE
from traincope.store.reading import find_run
from traincope.timeline import open_run


def last_good(path: Path) -> tuple[Path, Analysis]:
    """The newest run in the same parent directory that began before this one, ended well, and has steps that count.

    Raises NotARunError where there is none.
    """
    run = find_run(path).resolve()
    began_ns = read_run_info(run).started_wall_ns
    earlier = [(at_ns, other) for at_ns, other in _beside(run) if at_ns < began_ns]
    for _, other in sorted(earlier, reverse=True):
        analysis = _if_good(other)
        if analysis is not None:
            return other, analysis
    raise NotARunError(
        f"beside {run} lies no earlier run that ended well and has steps; name the run to compare with: RUN_A RUN_B"
    )


def _beside(run: Path) -> list[tuple[int, Path]]:
    """When it began, and where it lies; those that cannot be read are none."""
    found = []
    for card in run.parent.glob(f"*/{RUN_FILE}"):
        try:
            info = read_run_info(card.parent)
        except RunDirectoryError:
            continue
        if card.parent != run and not info.imported:
            found.append((info.started_wall_ns, card.parent))
    return found


def _if_good(run: Path) -> Analysis | None:
    try:
        timeline = open_run(run)
    except RunDirectoryError:
        return None
    well = not timeline.run.missing and all(rank.ending == CLEAN for rank in timeline.ranks)
    analysis = analyze(timeline) if well else None
    return analysis if analysis is not None and analysis.ledger.rank_steps else None
