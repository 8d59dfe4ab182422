"""Comparison of this host's ranks with witnessed ranks of other hosts: do the members of a group disagree?

The analysis of mismatches compares their histories. The histories that show the first mismatch are kept in the run
directory: the watchdog announces it, and a report finds it there.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from traincope.analysis.faults.hangs.hangs import completed_mismatches
from traincope.errors import RunDirectoryError
from traincope.live.peers.copies.histories import Histories
from traincope.private_files import make_directory
from traincope.store import RankRecords, RunRecords
from traincope.store.job.manifests import RunInfo, read_run_info
from traincope.store.job.witness import compared_directory
from traincope.timeline import build_copies
from traincope.topology import Host
from traincope.whole_files import written_aside

logger = logging.getLogger(__name__)


class Comparer:
    """Comparison of histories, on one thread."""

    def __init__(self, attempt: Path, histories: Histories, *, host: Host) -> None:
        """`host`: this one."""
        self._attempt, self._histories, self._host = attempt, histories, host
        self._directory = compared_directory(attempt, host)
        self._done = self._directory.exists()
        self._num_compared = 0
        """Number of copies in the histories that were compared."""

    @property
    def needs_copies(self) -> bool:
        """True while there are ranks of another host to compare with."""
        return not self._done and bool(self._histories.hosts - {self._host})

    def compare(self) -> None:
        """Compare what is new, and keep the histories if they show a mismatch between hosts.

        Copies can be added during that time.
        """
        before, self._num_compared = self._num_compared, self._histories.num_copies
        if self._num_compared == before or not self.needs_copies:
            return
        try:
            info = read_run_info(self._attempt.parent)
        except RunDirectoryError:
            return  # the agent reports it
        if self._shows_mismatch({rank: each.records for rank, each in self._histories.ranks().items()}, info):
            self._keep()

    def _shows_mismatch(self, ranks: Mapping[int, RankRecords], info: RunInfo) -> bool:
        """True if ranks of several hosts disagree. The node's agent finds mismatches within this host by itself."""
        run = RunRecords(
            path=self._attempt.parent,
            info=info,
            ranks=tuple(ranks[rank] for rank in sorted(ranks)),
            attempts=1,
            missing=(),
            problems=(),
        )
        timeline = build_copies(run, run.ranks)
        hosts = {rank: records.info.host for rank, records in ranks.items()}
        involved = ({hosts[rank] for rank in mismatch.calls} for mismatch in completed_mismatches(timeline))
        return any(len(each) > 1 and self._host in each for each in involved)

    def _keep(self) -> None:
        self._done = True
        try:
            make_directory(self._directory.parent, exist_ok=True)
            with written_aside(self._directory) as directory:
                for copy in self._histories.copies():
                    copy.write(directory / f"rank-{copy.rank:05d}")
        except OSError as error:
            logger.warning("the records of a mismatch could not be kept: %s", error)
