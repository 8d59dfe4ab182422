"""Tables of the ledger: steps of ranks, and the terms of each of them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from traincope.analysis import RankLedger
from traincope.analysis.attribution.terms import exposed_transfer
from traincope.arrays import Bools, Ints
from traincope.tables.sources import Sources
from traincope.tables.view import AXIS_TIME, RANK, RUN, WORDS, Column, Columns, View, same, words

STEP = Column("step", type=pa.int32(), help="number of the step", nullable=False)
DETAILED = Column(
    "detailed", type=pa.bool_(), help="all ranks recorded the step with its communication and waits", nullable=False
)
COUNTED = Column(
    "counted",
    type=pa.bool_(),
    help="the step enters the report's sums: it has detail, and is not the warm-up, dropped or requested",
    nullable=False,
)


def _steps(sources: Sources) -> Iterator[Columns]:
    for rank, ledger in zip(sources.context.measured.ranks, sources.analysis.ledger.ranks, strict=True):
        own_ns = np.array([step.own_ns for step in rank.steps], dtype=np.int64)
        yield {
            "rank": np.full(len(rank.steps), rank.rank, dtype=np.int32),
            "step": ledger.numbers,
            "start_ns": np.array([step.start_ns for step in rank.steps], dtype=np.int64),
            "end_ns": np.array([step.end_ns for step in rank.steps], dtype=np.int64),
            "wall_ns": ledger.wall_ns,
            "recorder_ns": pa.array(own_ns, mask=own_ns == 0),
            "clock": same(rank.ledger_clock, len(rank.steps)),
            "detailed": _detailed(sources, ledger.numbers),
            "counted": ledger.counted,
            "timed": ledger.timed,
            "requested": np.array([step.requested for step in rank.steps], dtype=bool),
            "guessed": np.array([step.guessed for step in rank.steps], dtype=bool),
        }


def _ledger(sources: Sources) -> Iterator[Columns]:
    order = sources.analysis.ledger.order
    axes = [term.partition("[")[2].removesuffix("]") for term in order]
    on_axis = np.array([bool(axis) for axis in axes], dtype=bool)
    for ledger in sources.analysis.ledger.ranks:
        num_steps = len(ledger.numbers)
        at = np.tile(np.arange(len(order)), num_steps)
        detailed = _detailed(sources, ledger.numbers)
        ns, known = _terms(ledger, order, detailed=detailed)
        yield {
            "rank": np.full(len(at), ledger.rank, dtype=np.int32),
            "step": np.repeat(ledger.numbers, len(order)),
            "term": words(at, order),
            "axis": words(at, axes, present=on_axis[at]),
            "ns": pa.array(ns, mask=~known),
            "ambiguous_ns": pa.array(_ambiguous(ledger, order), mask=~known),
            "detailed": np.repeat(detailed, len(order)),
            "counted": np.repeat(ledger.counted, len(order)),
            "timed": np.repeat(ledger.timed, len(order)),
        }


def _terms(ledger: RankLedger, order: tuple[str, ...], *, detailed: Bools) -> tuple[Ints, Bools]:
    """Return ns of each step and term, and whether it is known. A light step only knows the terms of every step."""
    ns = np.zeros((len(ledger.numbers), len(order)), dtype=np.int64)
    known = np.zeros(ns.shape, dtype=bool)
    for column, term in enumerate(order):
        values = ledger.terms[term]
        if values is not None:
            ns[:, column] = values
            known[:, column] = True if term in ledger.every_step else detailed | ledger.counted
    return ns.ravel(), known.ravel()


def _ambiguous(ledger: RankLedger, order: tuple[str, ...]) -> Ints:
    ns = np.zeros((len(ledger.numbers), len(order)), dtype=np.int64)
    for (axis, _), values in ledger.ambiguous_waits.items():
        if exposed_transfer(axis) in order:
            ns[:, order.index(exposed_transfer(axis))] += values
    return ns.ravel()


def _detailed(sources: Sources, numbers: Ints) -> Bools:
    detailed: Bools = ~np.isin(numbers, list(sources.undetailed_steps))
    return detailed


STEPS_VIEW = View(
    name="steps",
    row="one complete step of one rank",
    columns=(
        RUN,
        RANK,
        STEP,
        Column("start_ns", type=pa.int64(), unit="ns", help=AXIS_TIME, nullable=False),
        Column("end_ns", type=pa.int64(), unit="ns", help=AXIS_TIME, nullable=False),
        Column("wall_ns", type=pa.int64(), unit="ns", help="end - start, without evaluation", nullable=False),
        Column("recorder_ns", type=pa.int64(), unit="ns", help="the recorder's own CPU time; null: not measured"),
        Column("clock", type=WORDS, help="the clock that measured it: `host` or `device`", nullable=False),
        DETAILED,
        COUNTED,
        Column(
            "timed",
            type=pa.bool_(),
            help="the step enters the report's step time: counted, without detail, or requested",
            nullable=False,
        ),
        Column("requested", type=pa.bool_(), help="a person or an anomaly requested its detail", nullable=False),
        Column("guessed", type=pa.bool_(), help="its borders are guessed, without `run.step()`", nullable=False),
    ),
    make=_steps,
)

LEDGER_VIEW = View(
    name="ledger",
    row="one term of one complete step of one rank; the terms of a counted step sum to its `wall_ns`",
    columns=(
        RUN,
        RANK,
        STEP,
        Column("term", type=WORDS, help="term of the ledger, for example `exposed_wait[tp]`", nullable=False),
        Column("axis", type=WORDS, help="mesh axis of exposed communication; null: other terms"),
        Column(
            "ns",
            type=pa.int64(),
            unit="ns",
            help="time of the term; a part of the bubble may be negative. null: nothing measures the term, or the step "
            "has no detail",
        ),
        Column("ambiguous_ns", type=pa.int64(), unit="ns", help="part of `ns` of a transfer that may be wait"),
        DETAILED,
        COUNTED,
        Column("timed", type=pa.bool_(), help="as in `steps`", nullable=False),
    ),
    make=_ledger,
)
