"""What a page shows of a running job: a reader beside the node's agent, by the same reducing, that writes nothing."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

from traincope.analysis.faults import Fault, FaultKind
from traincope.errors import RunDirectoryError, TraincopeError
from traincope.live.agent import Agent, Options
from traincope.live.exporting import earlier_of, restored_rows
from traincope.live.rank import over
from traincope.live.samples import Moment, samples
from traincope.live.state import State, advance, begin
from traincope.live.window import RankStatus, Window
from traincope.record.identity import this_host
from traincope.samples import NODE_LABELS, Metric
from traincope.store.rows import Row

INTERVAL_SECONDS = 1.0
SHARE_OF_A_CORE = 0.05
"""More than the agent's: somebody is looking. What the page costs that shows it is not counted."""
MOST_STEPS = 240
MOST_FAULTS = 50
MOST_SLOW = 10
"""Slow steps among them: on a busy machine they would crowd out the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """As of the latest look."""

    state: State
    rows: tuple[Row, ...] = ()
    """Of the latest steps, without the one that warms up, by step and rank."""
    utilization: Mapping[int, float]
    """Step -> MFU of the steps that were reduced with it; those before the first look have none."""
    faults: tuple[Fault, ...] = ()
    """The newest first; marks are not among them, and of very many only so many are kept."""
    num_faults: int = 0
    """All that there were."""
    over: bool
    """No rank of this node will write anything more."""

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        return self.state.ranks

    def numbers(self, moment: Moment) -> dict[tuple[str, tuple[str, ...]], float]:
        """(Metric, its labels after run and host) -> value, as every exporter has it; without histograms."""
        told = samples(self.state, host=this_host().name, moment=moment, hardware={})
        return {
            key_of(one.metric, *one.labels[len(NODE_LABELS) :]): float(one.value)
            for one in told
            if isinstance(one.value, int | float)
        }


def key_of(metric: Metric, *labels: str) -> tuple[str, tuple[str, ...]]:
    return metric.name, labels


class Watcher:
    """Looks at one attempt from a thread of its own until its last rank is over, or `stop`."""

    def __init__(self, run: Path, *, attempt: int, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self.run, self.attempt = run, attempt
        self.seen: Seen | None = None
        self.problem: str | None = None
        """Why nothing more is seen, a sentence."""
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
        """The first look is over when it returns.

        Raises RunDirectoryError where no rank of this host is running.
        """
        try:
            window = self._agent.look()
        except OSError as error:
            raise RunDirectoryError(f"{self.run} cannot be read: {error}") from error
        if window.last:
            raise RunDirectoryError(
                f"{self.run} is not running: its ranks on this host are over; traincope view shows what they recorded"
            )
        self.observed(window)
        self._thread.start()

    def stop(self) -> None:
        self._agent.stopping = True
        if self._thread.ident is not None:
            self._thread.join()

    def observed(self, window: Window) -> None:
        self.seen = _first(window) if self.seen is None else _further(self.seen, window)

    def close(self) -> None:
        """What was seen last stays."""

    def _watch(self) -> None:
        try:
            self._agent.run()
        except (TraincopeError, OSError) as error:
            self.problem = f"{self.run} cannot be read any more: {error}"


def _first(window: Window) -> Seen:
    restored = restored_rows(window, known=frozenset())
    state = begin(window, earlier=earlier_of(window), restored=restored)
    nothing = Seen(state=state, utilization={}, over=over(window.ranks))
    return _with(nothing, window, restored=restored)


def _further(seen: Seen, window: Window) -> Seen:
    restored = restored_rows(window, known=frozenset(rank.rank for rank in seen.ranks))
    known = Seen(
        state=advance(seen.state, window, restored=restored),
        rows=seen.rows,
        utilization=seen.utilization,
        faults=seen.faults,
        num_faults=seen.num_faults,
        over=over(window.ranks),
    )
    return _with(known, window, restored=restored)


def _with(seen: Seen, window: Window, *, restored: tuple[Row, ...]) -> Seen:
    """What the window adds to lists."""
    new = [row for row in (*restored, *window.rows) if row.step != window.warm_up and row.many is None]
    by_place = {(row.step, row.rank): row for row in (*seen.rows, *new)}
    steps = sorted({step for step, _ in by_place})[-MOST_STEPS:]
    first = steps[0] if steps else 0
    mfu = None if window.analysis is None else window.analysis.utilization.ratios.mfu
    reduced = {} if mfu is None else {row.step: mfu for row in window.rows if row.step != window.warm_up}
    shares = {step: share for step, share in {**seen.utilization, **reduced}.items() if step >= first}
    faults = [fault for fault in (*window.earlier, *window.faults) if fault.is_fault]
    return Seen(
        state=seen.state,
        rows=tuple(by_place[place] for place in sorted(by_place) if place[0] >= first),
        utilization=shares,
        faults=_newest([*faults, *seen.faults]),
        num_faults=seen.num_faults + len(faults),
        over=seen.over,
    )


def _newest(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    ordered = sorted(faults, key=lambda fault: -fault.at_ns)
    slow = [fault for fault in ordered if fault.kind is FaultKind.SLOW_STEP][:MOST_SLOW]
    others = [fault for fault in ordered if fault.kind is not FaultKind.SLOW_STEP][:MOST_FAULTS]
    return tuple(sorted([*slow, *others], key=lambda fault: -fault.at_ns))
