"""Table of collectives and messages, matched across ranks."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from traincope.analysis.communication.axis_operations import parts_in_steps
from traincope.arrays import Ints
from traincope.events import NO_STEP
from traincope.tables.sources import Sources
from traincope.tables.steps import COUNTED, DETAILED
from traincope.tables.view import AXIS_TIME, RANK, RUN, STEP, WORDS, Column, Columns, View, words
from traincope.timeline.intervals.painting import ABSENT

UNKNOWN_RANK = -1


def _collectives(sources: Sources) -> Iterator[Columns]:
    instances, wire, parts = sources.context.instances, sources.context.transfers, sources.context.instances.parts
    number = instances.number
    unsized = np.logical_and(sources.timeline.run.info.imported, parts.num_bytes == 0)
    last = sources.context.last[number]
    yield {
        "rank": parts.rank,
        "step": pa.array(parts.step, mask=parts.step == NO_STEP),
        "axis": words(parts.axis_code, instances.axes),
        "operation": words(parts.operation_code, instances.operations),
        "group": _groups(sources),
        "group_size": parts.group_size,
        "source": _of_channel(sources, [channel.source for channel in instances.channels]),
        "destination": _of_channel(sources, [channel.destination for channel in instances.channels]),
        "instance": number.astype(np.int64),
        "sequence": parts.sequence.astype(np.int64),
        "window": parts.window.astype(np.int64),
        "bytes": pa.array(parts.num_bytes, mask=unsized),
        "start_ns": parts.start_ns,
        "end_ns": parts.end_ns,
        "duration_ns": parts.duration_ns,
        "end_bounded": parts.bounded,
        "transfer_ns": wire.ns[number],
        "estimated": ~wire.measured[number],
        "ambiguous": ~instances.splits[number],
        "complete": instances.complete[number],
        "last_rank": pa.array(last, mask=last == UNKNOWN_RANK),
        "evaluating": parts.evaluating,
        "detailed": ~np.isin(parts.step, list(sources.undetailed_steps)) & (parts.step != NO_STEP),
        "counted": parts_in_steps(instances, _counted_steps(sources)),
    }


def _counted_steps(sources: Sources) -> dict[int, Ints]:
    """Rank -> numbers of its steps that enter the ledger's sums."""
    return {
        rank.rank: np.array(
            [step.number for step in rank.steps if step.number not in sources.excluded_steps.numbers], dtype=np.int64
        )
        for rank in sources.context.measured.ranks
    }


def _groups(sources: Sources) -> pa.Array:
    """Name of the group of each part."""
    instances = sources.context.instances
    names = tuple(dict.fromkeys(channel.group for channel in instances.channels))
    at = {name: position for position, name in enumerate(names)}
    of_channel = np.array([at[channel.group] for channel in instances.channels], dtype=np.int32)
    return words(of_channel[instances.parts.channel], names)


def _of_channel(sources: Sources, values: list[int]) -> pa.Array:
    """Value of the channel of each part; null if it is ABSENT."""
    of_part = np.array(values, dtype=np.int64)[sources.context.instances.parts.channel]
    return pa.array(of_part, mask=of_part == ABSENT)


COLLECTIVES_VIEW = View(
    name="collectives",
    row="one rank's part in one ended collective or message: an all-reduce of 4 ranks has 4 rows",
    columns=(
        RUN,
        RANK,
        STEP,
        Column("axis", type=WORDS, help="mesh axis of the group"),
        Column("operation", type=WORDS, help="for example `all_reduce` or `send`"),
        Column("group", type=WORDS, help="name of the process group"),
        Column("group_size", type=pa.int32(), help="ranks of the group; 2 for a message", nullable=False),
        Column("source", type=pa.int32(), help="sending rank of a message; null: a collective"),
        Column("destination", type=pa.int32(), help="receiving rank of a message; null: a collective"),
        Column("instance", type=pa.int64(), help="number that all parts of one collective share", nullable=False),
        Column("sequence", type=pa.int64(), help="count on its group and window", nullable=False),
        Column("window", type=pa.int64(), help="first step of the window in which counts began", nullable=False),
        Column(
            "bytes",
            type=pa.int64(),
            unit="bytes",
            help="size of the part; null: an imported table or trace does not state it",
        ),
        Column("start_ns", type=pa.int64(), unit="ns", help=f"time of the call; {AXIS_TIME}", nullable=False),
        Column("end_ns", type=pa.int64(), unit="ns", help=f"completion; {AXIS_TIME}", nullable=False),
        Column("duration_ns", type=pa.int64(), unit="ns", help="end - start, with the wait for others", nullable=False),
        Column(
            "end_bounded",
            type=pa.bool_(),
            help="`end_ns` is only an upper bound: it was complete before anything waited for it",
            nullable=False,
        ),
        Column(
            "transfer_ns",
            type=pa.int64(),
            unit="ns",
            help="time on the wire, hidden or not, the same for all parts of an instance",
            nullable=False,
        ),
        Column(
            "estimated",
            type=pa.bool_(),
            help="`transfer_ns` is an estimate from similar ones, or a bound",
            nullable=False,
        ),
        Column(
            "ambiguous",
            type=pa.bool_(),
            help="`transfer_ns` may contain wait: a part is missing, or clocks do not compare",
            nullable=False,
        ),
        Column("complete", type=pa.bool_(), help="all ranks of the group recorded their part", nullable=False),
        Column("last_rank", type=pa.int32(), help="the rank that joined last; null: unknown"),
        Column("evaluating", type=pa.bool_(), help="it began within an evaluation", nullable=False),
        DETAILED,
        COUNTED,
    ),
    make=_collectives,
)
