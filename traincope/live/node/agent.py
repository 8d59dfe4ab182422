"""Agent: looks at its ranks repeatedly until the last of them is over."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, process_time

from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.errors import MissingDependencyError, RunDirectoryError
from traincope.live.node.job_budget import JobBudget
from traincope.live.node.noticing.deaths import Deaths
from traincope.live.node.noticing.watchdog import Watchdog
from traincope.live.node.rank import RankTail, over
from traincope.live.node.ready import PATIENCE_NS, awaited_step, last_arrived, last_marked, last_ready, progress
from traincope.live.node.reducing import Reducer
from traincope.live.node.retention import NoRetention, RowRetention, SegmentRetention, remove_leftovers
from traincope.live.window import CopiedRanks, Observer, RankStatus, Window
from traincope.record.instrumentation.guard import guard
from traincope.record.session.identity import this_host
from traincope.store.job.manifests import RankInfo, RunInfo, read_rank_info, read_run_info
from traincope.store.layout import attempt_directory, rank_number
from traincope.store.side_tables.rows import Row, append_rows

logger = logging.getLogger(__name__)

DEFAULT_INTERVAL_SECONDS = 5.0
SHARE_OF_A_CORE = 0.007
"""Maximum mean CPU share of the agent: it rests after each look. Scrapes may use the rest of 1 % of a core."""
MAX_REST_SECONDS = 60.0
"""Upper bound of the rest. Under heavy load the agent exceeds its CPU share, so that its backlog stays bounded."""
POLL_SECONDS = 1.0
"""Interval at which a resting agent checks whether the ranks still run."""
STALLED_RANK_NS = 300_000_000_000
"""A rank without a finished step for this long no longer delays the release of the other ranks' events."""
MAX_HELD_RECORDS = 1 << 20
"""Maximum number of events held per rank, 56 bytes each. A larger step is not reduced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of an agent."""

    run: Path
    attempt: int
    disk_budget_bytes: int
    """Disk budget of each writing thread of a rank."""
    expected_ranks: int | None = None
    """Number of ranks on the node. No step is reduced before all exist. None: unknown, up to the world size."""
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    share_of_a_core: float = SHARE_OF_A_CORE
    spent_seconds: Callable[[], float] = process_time
    """CPU time of this agent. By default that of the process, because answering scrapes is also its work."""
    job_budget: JobBudget | None = None
    """Disk budget of all records of the job; None: only the threads have one."""
    writes: bool = True
    """False: only read. Another agent owns the rows and segments."""


class Agent:
    """Agent of one attempt of a job on this node."""

    def __init__(
        self, options: Options, *, observers: Sequence[Observer] = (), copies: CopiedRanks | None = None
    ) -> None:
        """`copies`: without them, groups that span hosts stay unsplit."""
        self.stopping = False
        """True: look once more, then end. A signal handler may set it: no lock is needed."""
        self._options, self._copies = options, copies
        self._observers = [guard(observer.observe) for observer in observers]
        self._close_observers = [guard(observer.close) for observer in observers]
        self._began_ns = monotonic_ns()
        self.num_rows = 0
        """Number of rows written so far."""
        self._tails: dict[int, RankTail] = {}
        self._reducer: Reducer | None = None
        self._over_ranks: frozenset[int] = frozenset()
        self._mismatched: set[tuple[int, ...]] = set()
        self._retention: SegmentRetention | NoRetention = (
            SegmentRetention(disk_budget_bytes=options.disk_budget_bytes) if options.writes else NoRetention()
        )
        self._watchdog = Watchdog(options.run, attempt=options.attempt, looks=options.writes)
        self._deaths = Deaths() if options.writes else None
        self._row_retention = RowRetention() if options.writes else None

    def run(self) -> None:
        """Look until all ranks are over. Raises RunDirectoryError if this node has no rank or the directory is gone."""
        try:
            self._watch()
        finally:
            for close in self._close_observers:
                close()

    def _watch(self) -> None:
        before_seconds = self._options.spent_seconds()
        while True:
            window = self.look()
            for observe in self._observers:
                observe(window)
            self.num_rows += len(window.rows)
            self._tidy()
            if window.last:
                return
            now_seconds = self._options.spent_seconds()
            spent_seconds, before_seconds = now_seconds - before_seconds, now_seconds
            self._rest(rest_seconds(spent_seconds, self._options))

    def look(self) -> Window:
        """Read new events, and reduce the steps that are ready."""
        now_ns, ending = monotonic_ns(), self.stopping
        tails = self._find_ranks()
        if self._deaths is not None:
            self._deaths.follow(tails)
        for tail in tails:
            tail.read(now_ns=now_ns)
        ranks = tuple(tail.status() for tail in tails)
        info, reducer = read_run_info(self._options.run), self._reducer or self._first_look(tails)
        steps = [progress(tail, rank) for tail, rank in zip(tails, ranks, strict=True)]
        copied = () if self._copies is None else self._copies.copied_ranks()
        others = [rank for rank in copied if rank.records.rank not in self._tails]
        until = last_ready(steps, expected=self._expected(info, now_ns=now_ns), now_ns=now_ns)
        until = last_marked(steps, until=until, now_ns=now_ns)
        until = last_arrived(steps, others, until=until, now_ns=now_ns)
        elsewhere = None if self._copies is None else self._copies.elsewhere()
        if elsewhere is not None and not over(ranks):
            seen = {*self._tails, *(rank.records.rank for rank in others)}
            awaited = [awaited_step(tail, elsewhere, seen=seen, now_ns=now_ns) for tail in tails]
            until = min([until, *(step - 1 for step in awaited if step is not None)])
        reduced = None
        if (
            self._has_new_end(ranks)
            or reducer.takes_over
            or any(step <= until for rank_progress in steps for step in rank_progress.ends_ns)
        ):
            reduced = reducer.reduce(
                tails, ranks, info=info, until=until, last=over(ranks), copied=copied, elsewhere=elsewhere
            )
        rows = () if reduced is None else self._write_rows(reduced.rows, tails)
        if rows:
            self._watchdog.learn(rows, warm_up=reducer.warm_up, tails=tails)
        hangs = self._watchdog.look(tails, now_ns=now_ns)
        return Window(
            run=self._options.run,
            attempt=self._options.attempt,
            info=info,
            at_ns=now_ns,
            since_ns=reducer.until_ns if reduced is None else reduced.since_ns,
            until_ns=reducer.until_ns,
            ranks=ranks,
            rows=rows,
            warm_up=reducer.warm_up,
            analysis=None if reduced is None else reduced.analysis,
            faults=tuple(self._once(hangs if reduced is None else (*reduced.faults, *hangs))),
            earlier=() if reduced is None else reduced.earlier,
            last=ending or over(ranks),
        )

    def _once(self, faults: Iterable[Fault]) -> Iterator[Fault]:
        """Leave out mismatches of ranks that had one. The reducer finds it in the events, the watchdog after a stop and
        between hosts.
        """
        for fault in faults:
            if fault.kind is not FaultKind.MISMATCH or fault.ranks not in self._mismatched:
                yield fault
            if fault.kind is FaultKind.MISMATCH:
                self._mismatched.add(fault.ranks)

    def _find_ranks(self) -> list[RankTail]:
        """Ranks of this node that have written `rank.json`, in order."""
        directory = attempt_directory(self._options.run, self._options.attempt)
        for path in directory.glob("rank-*"):
            number = rank_number(path)
            if number is not None and number not in self._tails and (info := _info_on_this_host(path)) is not None:
                self._tails[info.coord.rank] = RankTail(path, attempt=self._options.attempt)
                if self._options.writes:
                    remove_leftovers(path)
        if not self._tails:
            raise RunDirectoryError(
                f"no rank of this host ({this_host().name}) recorded in {directory}; "
                "run this on a node of the job with the run directory of its ranks"
            )
        return [self._tails[rank] for rank in sorted(self._tails)]

    def _expected(self, info: RunInfo, *, now_ns: int) -> int:
        """Number of ranks to wait for. The wait for possible ranks of other nodes is limited."""
        if self._options.expected_ranks is not None:
            return self._options.expected_ranks
        return info.world_size if now_ns - self._began_ns < PATIENCE_NS else 1

    def _first_look(self, tails: Sequence[RankTail]) -> Reducer:
        before = [row for tail in tails for row in tail.rows]
        self._reducer = Reducer(self._options.run, attempt=self._options.attempt, before=before)
        self._watchdog.learn(before, warm_up=self._reducer.warm_up)
        return self._reducer

    def _write_rows(self, rows: Sequence[Row], tails: Sequence[RankTail]) -> tuple[Row, ...]:
        """Write the rows to disk, and return them."""
        for tail in tails:
            rank_rows = [row for row in rows if row.rank == tail.rank]
            tail.mark_done(rank_rows)
            try:
                if rank_rows and self._options.writes:
                    append_rows(tail.directory, rank_rows)
            except OSError as error:
                steps = ", ".join(str(row.step) for row in rank_rows[:5])
                logger.warning("rows of rank %d could not be written (steps %s): %s", tail.rank, steps, error)
        return tuple(rows)

    def _has_new_end(self, ranks: Sequence[RankStatus]) -> bool:
        """True if a rank ended since the last look."""
        before, self._over_ranks = self._over_ranks, frozenset(rank.rank for rank in ranks if rank.over)
        return self._over_ranks != before

    def _tidy(self) -> None:
        """Release events that no later window needs, compact released segments, and keep within the disk budget."""
        tails = [self._tails[rank] for rank in sorted(self._tails)]
        release(tails, now_ns=monotonic_ns())
        try:
            for tail in tails:
                self._retention.apply(tail)
            if self._options.job_budget is not None and self._options.writes:
                self._options.job_budget.apply(tails, world_size=read_run_info(self._options.run).world_size)
        except MissingDependencyError as error:
            logger.warning("segments are not compacted and take 56 bytes per event: %s", error)
            self._retention = NoRetention()
        except OSError as error:
            logger.warning("segments could not be compacted; the agent tries again: %s", error)
        if self._row_retention is not None:
            self._thin_rows(tails, self._row_retention)

    def _thin_rows(self, tails: Sequence[RankTail], retention: RowRetention) -> None:
        try:
            for tail in tails:
                retention.apply(tail, now_ns=monotonic_ns())
        except OSError as error:
            logger.warning("rows could not be thinned; the agent tries again in some hours: %s", error)

    def _rest(self, seconds: float) -> None:
        """Sleep; return early once no rank runs, and when the watchdog wants a look."""
        until_ns = monotonic_ns() + round(seconds * 1e9)
        while (left_ns := until_ns - monotonic_ns()) > 0:
            time.sleep(min(left_ns / 1e9, POLL_SECONDS))
            tails = self._tails.values()
            if self.stopping or all(tail.is_running() is False for tail in tails):
                return
            if self._watchdog.notices(tails, now_ns=monotonic_ns()):
                return


def rest_seconds(spent_seconds: float, options: Options) -> float:
    """Time to rest after a look that took this much CPU time."""
    rest_for_share = min(spent_seconds / options.share_of_a_core, MAX_REST_SECONDS)
    return max(options.interval_seconds, rest_for_share)


def release(tails: Sequence[RankTail], *, now_ns: int) -> None:
    """Release all before the last reduced step. A wait in the next step may be for an event of that step."""
    starts_ns = {tail.rank: tail.start_of_done_ns() for tail in tails}
    common_ns = max(min(starts_ns.values()), now_ns - STALLED_RANK_NS)
    for tail in tails:
        tail.release(min(starts_ns[tail.rank], common_ns))
        if tail.num_held > MAX_HELD_RECORDS:
            tail.give_up(now_ns - STALLED_RANK_NS)


def _info_on_this_host(directory: Path) -> RankInfo | None:
    """Card of a rank of this host; None for other hosts, and before the card is written."""
    try:
        info = read_rank_info(directory)
    except RunDirectoryError:
        return None
    return info if info.host == this_host() else None
