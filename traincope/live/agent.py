"""The agent: looks at its ranks now and then, until the last of them is over."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, process_time

from traincope.errors import MissingDependencyError, RunDirectoryError
from traincope.live.keeping import Idle, Keeper, RowKeeper, remove_leftovers
from traincope.live.rank import RankTail, over
from traincope.live.ready import PATIENCE_NS, last_ready, progress
from traincope.live.reducing import Reducer
from traincope.live.window import Observer, RankStatus, Window
from traincope.record.guard import guard
from traincope.record.identity import this_host
from traincope.store.cards import RankInfo, RunInfo, read_rank_info, read_run_info
from traincope.store.layout import attempt_directory, rank_number
from traincope.store.rows import Row, append_rows

logger = logging.getLogger(__name__)

DEFAULT_INTERVAL_SECONDS = 5.0
SHARE_OF_A_CORE = 0.007
"""After a look it rests so long that it takes no more than this in the mean: scrapes take the rest of a hundredth."""
LONGEST_REST_SECONDS = 60.0
"""Where so much is written that it cannot keep to that, it takes more: what it finds next must not grow for ever."""
GLANCE_SECONDS = 1.0
"""So often a resting agent asks whether the ranks are still there."""
FORGOTTEN_NS = 300_000_000_000
"""A rank that has not finished a step for so long does not keep the records of the others from being released."""
MOST_HELD = 1 << 20
"""Records of a rank, 56 bytes each: a step that takes more is not reduced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an agent is told."""

    run: Path
    attempt: int
    disk_budget_bytes: int
    """Of each writing thread of a rank."""
    expected_ranks: int | None = None
    """How many the node has: no step is reduced before all are there. None: not told, it may have the whole world."""
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    share_of_a_core: float = SHARE_OF_A_CORE
    spent_seconds: Callable[[], float] = process_time
    """CPU time that counts as its own: of an agent all of the process, for answering those that ask is its work too."""
    writes: bool = True
    """False: it only looks, beside the agent whose matter rows and segments are."""


class Agent:
    """Of one attempt of a job on this node."""

    def __init__(self, options: Options, *, observers: Sequence[Observer] = ()) -> None:
        self.stopping = False
        """True: it looks once more, and ends. Whoever handles a signal may set it: no lock is taken for it."""
        self._options = options
        self._observers = [guard(observer.observed) for observer in observers]
        self._closing = [guard(observer.close) for observer in observers]
        self._began_ns = monotonic_ns()
        self.num_rows = 0
        """Written so far."""
        self._tails: dict[int, RankTail] = {}
        self._reducer: Reducer | None = None
        self._over: frozenset[int] = frozenset()
        self._keeper: Keeper | Idle = Keeper(disk_budget_bytes=options.disk_budget_bytes) if options.writes else Idle()
        self._row_keeper = RowKeeper() if options.writes else None

    def run(self) -> None:
        """Until all ranks are over. Raises RunDirectoryError where there are none of this node, or no more."""
        try:
            self._watch()
        finally:
            for close in self._closing:
                close()

    def _watch(self) -> None:
        before_seconds = self._options.spent_seconds()
        while True:
            window = self.look()
            for observed in self._observers:
                observed(window)
            self.num_rows += len(window.rows)
            self._tidy()
            if window.last:
                return
            now_seconds = self._options.spent_seconds()
            spent_seconds, before_seconds = now_seconds - before_seconds, now_seconds
            self._rest(rest_seconds(spent_seconds, self._options))

    def look(self) -> Window:
        """Read what is new, and reduce what is ready."""
        now_ns, ending = monotonic_ns(), self.stopping
        tails = self._find_ranks()
        for tail in tails:
            tail.read(now_ns=now_ns)
        ranks = tuple(tail.status() for tail in tails)
        info, reducer = read_run_info(self._options.run), self._reducer or self._first_look(tails)
        steps = [progress(tail, rank) for tail, rank in zip(tails, ranks, strict=True)]
        until = last_ready(steps, expected=self._expected(info, now_ns=now_ns), now_ns=now_ns)
        reduced = None
        if self._ended(ranks) or reducer.takes_over or any(step <= until for one in steps for step in one.ends_ns):
            reduced = reducer.reduce(tails, ranks, info=info, until=until, last=over(ranks))
        return Window(
            run=self._options.run,
            attempt=self._options.attempt,
            info=info,
            at_ns=now_ns,
            since_ns=reducer.until_ns if reduced is None else reduced.since_ns,
            until_ns=reducer.until_ns,
            ranks=ranks,
            rows=() if reduced is None else self._kept(reduced.rows, tails),
            warm_up=reducer.warm_up,
            analysis=None if reduced is None else reduced.analysis,
            faults=() if reduced is None else reduced.faults,
            earlier=() if reduced is None else reduced.earlier,
            last=ending or over(ranks),
        )

    def _find_ranks(self) -> list[RankTail]:
        """Those of this node that have said who they are, in order."""
        directory = attempt_directory(self._options.run, self._options.attempt)
        for path in directory.glob("rank-*"):
            number = rank_number(path)
            if number is not None and number not in self._tails and (info := _own_info(path)) is not None:
                self._tails[info.coord.rank] = RankTail(path, attempt=self._options.attempt)
                if self._options.writes:
                    remove_leftovers(path)
        if not self._tails:
            raise RunDirectoryError(
                f"no rank of this host ({this_host().name}) has recorded in {directory}; "
                "run the agent on a node of the job, with the run directory its ranks write to"
            )
        return [self._tails[rank] for rank in sorted(self._tails)]

    def _expected(self, info: RunInfo, *, now_ns: int) -> int:
        """How many ranks to wait for; those of other nodes, if there are any, not for ever."""
        if self._options.expected_ranks is not None:
            return self._options.expected_ranks
        return info.world_size if now_ns - self._began_ns < PATIENCE_NS else 1

    def _first_look(self, tails: Sequence[RankTail]) -> Reducer:
        before = [row for tail in tails for row in tail.rows]
        self._reducer = Reducer(self._options.run, attempt=self._options.attempt, before=before)
        return self._reducer

    def _kept(self, rows: Sequence[Row], tails: Sequence[RankTail]) -> tuple[Row, ...]:
        """The same, written down."""
        for tail in tails:
            own = [row for row in rows if row.rank == tail.rank]
            tail.take(own)
            try:
                if own and self._options.writes:
                    append_rows(tail.directory, own)
            except OSError as error:
                steps = ", ".join(str(row.step) for row in own[:5])
                logger.warning("rows of rank %d could not be written (steps %s): %s", tail.rank, steps, error)
        return tuple(rows)

    def _ended(self, ranks: Sequence[RankStatus]) -> bool:
        """Whether one is over that was not when last looked at."""
        before, self._over = self._over, frozenset(rank.rank for rank in ranks if rank.over)
        return self._over != before

    def _tidy(self) -> None:
        """Release what no later window needs, compact what nothing of is held, and keep within the budget."""
        tails = [self._tails[rank] for rank in sorted(self._tails)]
        release(tails, now_ns=monotonic_ns())
        try:
            for tail in tails:
                self._keeper.tidy(tail)
        except MissingDependencyError as error:
            logger.warning("records stay as they were written, 56 bytes each: %s", error)
            self._keeper = Idle()
        except OSError as error:
            logger.warning("records could not be compacted, it is tried again: %s", error)
        if self._row_keeper is not None:
            self._thin_rows(tails, self._row_keeper)

    def _thin_rows(self, tails: Sequence[RankTail], keeper: RowKeeper) -> None:
        try:
            for tail in tails:
                keeper.tidy(tail, now_ns=monotonic_ns())
        except OSError as error:
            logger.warning("rows could not be thinned, it is tried again in some hours: %s", error)

    def _rest(self, seconds: float) -> None:
        """Not after the last rank is over."""
        until_ns = monotonic_ns() + round(seconds * 1e9)
        while (left_ns := until_ns - monotonic_ns()) > 0:
            time.sleep(min(left_ns / 1e9, GLANCE_SECONDS))
            if self.stopping or not any(tail.is_running() for tail in self._tails.values()):
                return


def rest_seconds(spent_seconds: float, options: Options) -> float:
    """How long to rest after a look that took so much CPU time."""
    wished = min(spent_seconds / options.share_of_a_core, LONGEST_REST_SECONDS)
    return max(options.interval_seconds, wished)


def release(tails: Sequence[RankTail], *, now_ns: int) -> None:
    """All of what lies before the last step that was reduced: a wait in the next may be for what began in that."""
    starts_ns = {tail.rank: tail.start_of_done_ns() for tail in tails}
    of_all_ns = max(min(starts_ns.values()), now_ns - FORGOTTEN_NS)
    for tail in tails:
        tail.release(min(starts_ns[tail.rank], of_all_ns))
        if tail.num_held > MOST_HELD:
            tail.give_up(now_ns - FORGOTTEN_NS)


def _own_info(directory: Path) -> RankInfo | None:
    """None for a rank of another host, and one that has not said yet who it is."""
    try:
        info = read_rank_info(directory)
    except RunDirectoryError:
        return None
    return info if info.host == this_host() else None
