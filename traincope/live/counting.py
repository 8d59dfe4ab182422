"""What a window adds to the counters of a node."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope import metrics
from traincope.analysis import Analysis
from traincope.analysis.amounts import LOGGED, TOKENS
from traincope.analysis.faults import FaultKind
from traincope.analysis.hardware import xids
from traincope.analysis.told import positive
from traincope.analysis.work import ON
from traincope.events import OPEN, Kind, Phase
from traincope.live.series import Series, series
from traincope.live.window import Window
from traincope.store.rows import Row
from traincope.timeline import RankTimeline
from traincope_exporters.telling import MOST_MODULES, OTHER_MODULES, axis_of, counted_faults, term_and_axis

LEVEL_2_PROBE = "modules"

Pairs = Iterator[tuple[Series, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The steps that are new, rank by rank."""

    rows: tuple[Row, ...]
    warm_up: int | None
    """Number of the step that enters the number of steps, and no other sum."""

    @property
    def counted(self) -> Iterator[Row]:
        return (row for row in self.rows if row.step != self.warm_up)

    def of(self, rank: int) -> list[int]:
        """Numbers of its counted steps."""
        return [row.step for row in self.counted if row.rank == rank]


def counts(window: Window, *, restored: Sequence[Row], known: Collection[Series]) -> dict[Series, int]:
    """Numbers, and ns where the metric is in seconds. `restored`: rows of an agent before this one."""
    everything = Finished(rows=(*restored, *window.rows), warm_up=window.warm_up)
    pairs = [*_of_rows(everything), *_of_faults(window)]
    if window.analysis is not None:
        new = Finished(rows=window.rows, warm_up=window.warm_up)
        pairs += _of_analysis(window.analysis)
        detailed = _in_detail(window)
        for rank in (one for one in window.analysis.timeline.ranks if one.rank in detailed):
            records = in_steps(rank, new.of(rank.rank))
            pairs += [*_modules(rank, records, known=known), *_actions(rank, records)]
    pairs += _tokens(window)
    sums: Counter[Series] = Counter()
    for key, value in pairs:
        sums[key] += value
    return dict(sums)


def in_steps(rank: RankTimeline, steps: Sequence[int]) -> NDArray[np.void]:
    """Closed records of all its threads that belong to these steps."""
    records = np.concatenate(list(rank.threads.values()))
    chosen: NDArray[np.void] = records[np.isin(records["step"], steps) & (records["end_ns"] != OPEN)]
    return chosen


def _of_rows(finished: Finished) -> Pairs:
    for row in finished.rows:
        yield series(metrics.STEPS, row.rank), row.num_steps
        yield series(metrics.OWN_TIME), row.own_ns
    for row in finished.counted:
        yield series(metrics.WALL, row.rank), row.wall_ns
        for term, ns in row.terms.items():
            yield series(metrics.LEDGER, row.rank, *term_and_axis(term)), ns


def _of_faults(window: Window) -> Pairs:
    faults = (*window.earlier, *window.faults)
    for rank, kind, _ in counted_faults(faults):
        yield series(metrics.FAULTS, rank, kind), 1
    told = {(fault.at_ns, fault.ranks) for fault in faults if fault.kind == FaultKind.XID}
    if window.analysis is not None and told:
        for xid in xids(window.analysis.timeline):
            if (xid.at_ns, (xid.rank,)) in told:
                yield series(metrics.GPU_XID, xid.rank, xid.gpu, xid.number), 1


def _of_analysis(analysis: Analysis) -> Pairs:
    for rank in analysis.stragglers.ranks:
        yield series(metrics.CAUSED_WAIT, rank.rank), rank.caused_wait_ns
    for row in analysis.comm:
        labels = (axis_of(row.axis), row.operation)
        yield series(metrics.COLLECTIVE_BYTES, *labels), row.num_bytes
        yield series(metrics.COLLECTIVE_TRANSFER, *labels), row.transfer_ns
        yield series(metrics.COLLECTIVE_WAIT, *labels), row.wait_ns


def _in_detail(window: Window) -> frozenset[int]:
    """Ranks that record at level 2; pipeline actions are recorded below it too, for the bubble."""
    return frozenset(rank.rank for rank in window.ranks if rank.info.probes.get(LEVEL_2_PROBE) == ON)


def _modules(rank: RankTimeline, records: NDArray[np.void], *, known: Collection[Series]) -> Pairs:
    """The first `MOST_MODULES` names each by itself."""
    name, number = metrics.MODULE_TIME.name, str(rank.rank)
    seen = {key for key in known if key[0] == name and key[1][0] == number}
    spans = records[(records["kind"] == Kind.SPAN) & (records["phase"] == Phase.FORWARD)]
    for module, ns in sorted(_by_name(rank, spans).items()):
        key = series(metrics.MODULE_TIME, rank.rank, module)
        if key not in seen and len(seen) >= MOST_MODULES:
            key = series(metrics.MODULE_TIME, rank.rank, OTHER_MODULES)
        seen.add(key)
        yield key, ns


def _actions(rank: RankTimeline, records: NDArray[np.void]) -> Pairs:
    actions = records[records["kind"] == Kind.ACTION]
    for stage in np.unique(actions["peer"]).tolist():
        for action, ns in _by_name(rank, actions[actions["peer"] == stage]).items():
            yield series(metrics.ACTION_TIME, rank.rank, stage, action), ns


def _by_name(rank: RankTimeline, records: NDArray[np.void]) -> Mapping[str, int]:
    numbers, at = np.unique(records["name"], return_inverse=True)
    sums = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(sums, at, records["end_ns"] - records["start_ns"])
    return {rank.name(number): ns for number, ns in zip(numbers.tolist(), sums.tolist(), strict=True)}


def _tokens(window: Window) -> Pairs:
    """What the ranks logged of their own; else their share of what was told of every step."""
    logged = sum(_logged_tokens(window))
    per_step = positive(window.info.settings.get("tokens_per_step"))
    if logged:
        yield series(metrics.TOKENS), round(logged)
    elif per_step is not None and window.rows:
        yield series(metrics.TOKENS), round(per_step * len(window.rows) / window.info.world_size)


def _logged_tokens(window: Window) -> Iterable[float]:
    name = LOGGED.format(TOKENS)
    if window.analysis is None:
        return
    for rank in window.analysis.timeline.ranks:
        steps = [row.step for row in window.rows if row.rank == rank.rank]
        scalars = rank.of_kind(Kind.SCALAR)
        for record in scalars[np.isin(scalars["step"], steps)]:
            if rank.name(int(record["name"])) == name:
                yield float(np.int64(record["value"]).view(np.float64))
