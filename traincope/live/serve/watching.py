"""Data of the page of a running job: a second reader that reduces as the agent does and writes nothing."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.live.metrics.samples import Moment, samples
from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.metrics.state import State, advance, begin
from traincope.live.node.agent import Agent, Options
from traincope.live.node.rank import over
from traincope.live.serve.exporting import earlier_attempts_of, restored_rows
from traincope.live.window import RankStatus, Window
from traincope.metrics.metric import NODE_LABELS
from traincope.record.session.identity import this_host
from traincope.store.side_tables.rows import Row

INTERVAL_SECONDS = 1.0
SHARE_OF_A_CORE = 0.05
"""CPU share. It is larger than the agent's because a person is looking. Serving the page is not included."""
MAX_STEPS = 240
MAX_FAULTS = 50
MAX_SLOW_STEPS = 10
"""Limit of slow steps among the faults. On a busy machine they would hide the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of the page after the latest look."""

    state: State
    rows: tuple[Row, ...] = ()
    """Rows of the latest steps by step and rank, without the warm-up step."""
    utilization: Mapping[int, float]
    """Step -> MFU of the steps reduced with it. Steps before the first look have none."""
    faults: tuple[Fault, ...] = ()
    """Newest faults first, without marks; at most `MAX_FAULTS` and `MAX_SLOW_STEPS`."""
    num_faults: int = 0
    """Number of all faults."""
    over: bool
    """True if no rank of this node will write anything more."""

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        return self.state.ranks

    def numbers(self, moment: Moment) -> dict[SeriesKey, float]:
        """(Metric, its labels after run and host) -> value, as every exporter has it. Histograms are left out."""
        listed = samples(self.state, host=this_host().name, moment=moment, hardware={})
        return {
            series_key(sample.metric, *sample.labels[len(NODE_LABELS) :]): float(sample.value)
            for sample in listed
            if isinstance(sample.value, int | float)
        }


class Watcher:
    """Thread that follows one attempt until its last rank is over, or `stop`."""

    def __init__(self, run: Path, *, attempt: int, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self.run, self.attempt = run, attempt
        self.snapshot: Snapshot | None = None
        self.problem: str | None = None
        """One sentence: the reason why no more data arrives."""
        options = Options(
            run=run,
            attempt=attempt,
            disk_budget_bytes=0,
            interval_seconds=interval_seconds,
            share_of_a_core=SHARE_OF_A_CORE,
            spent_seconds=thread_time,
            writes=False,
        )
        self._agent = Agent(options, observers=(self,))
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def start(self) -> None:
        """Take the first look, then start the thread.

        Raises RunDirectoryError if no rank of this host runs.
        """
        try:
            window = self._agent.look()
        except OSError as error:
            raise RunDirectoryError(f"{self.run} cannot be read: {error}") from error
        if window.last:
            raise RunDirectoryError(
                f"{self.run} is not running: its ranks on this host have ended; `traincope view` shows the run"
            )
        self.observe(window)
        self._thread.start()

    def stop(self) -> None:
        self._agent.stopping = True
        if self._thread.ident is not None:
            self._thread.join()

    def observe(self, window: Window) -> None:
        self.snapshot = _first_snapshot(window) if self.snapshot is None else _next_snapshot(self.snapshot, window)

    def close(self) -> None:
        """Keep the latest snapshot."""

    def _watch(self) -> None:
        try:
            self._agent.run()
        except (TraincopeError, OSError) as error:
            self.problem = f"{self.run} cannot be read any more: {error}"


def _first_snapshot(window: Window) -> Snapshot:
    restored = restored_rows(window, known=frozenset())
    state = begin(window, earlier=earlier_attempts_of(window), restored=restored)
    empty = Snapshot(state=state, utilization={}, over=over(window.ranks))
    return _with_window(empty, window, restored=restored)


def _next_snapshot(snapshot: Snapshot, window: Window) -> Snapshot:
    restored = restored_rows(window, known=frozenset(rank.rank for rank in snapshot.ranks))
    known = Snapshot(
        state=advance(snapshot.state, window, restored=restored),
        rows=snapshot.rows,
        utilization=snapshot.utilization,
        faults=snapshot.faults,
        num_faults=snapshot.num_faults,
        over=over(window.ranks),
    )
    return _with_window(known, window, restored=restored)


def _with_window(snapshot: Snapshot, window: Window, *, restored: tuple[Row, ...]) -> Snapshot:
    """Add the window's rows, MFU and faults."""
    new = [row for row in (*restored, *window.rows) if row.step != window.warm_up and row.merged is None]
    by_place = {(row.step, row.rank): row for row in (*snapshot.rows, *new)}
    steps = sorted({step for step, _ in by_place})[-MAX_STEPS:]
    first = steps[0] if steps else 0
    mfu = None if window.analysis is None else window.analysis.utilization.ratios.mfu
    reduced = {} if mfu is None else {row.step: mfu for row in window.rows if row.step != window.warm_up}
    shares = {step: share for step, share in {**snapshot.utilization, **reduced}.items() if step >= first}
    faults = [fault for fault in (*window.earlier, *window.faults) if fault.is_fault]
    return Snapshot(
        state=snapshot.state,
        rows=tuple(by_place[place] for place in sorted(by_place) if place[0] >= first),
        utilization=shares,
        faults=_newest([*faults, *snapshot.faults]),
        num_faults=snapshot.num_faults + len(faults),
        over=snapshot.over,
    )


def _newest(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    ordered = sorted(faults, key=lambda fault: -fault.at_ns)
    slow = [fault for fault in ordered if fault.kind is FaultKind.SLOW_STEP][:MAX_SLOW_STEPS]
    others = [fault for fault in ordered if fault.kind is not FaultKind.SLOW_STEP][:MAX_FAULTS]
    return tuple(sorted([*slow, *others], key=lambda fault: -fault.at_ns))
