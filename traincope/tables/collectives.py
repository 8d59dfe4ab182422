"""Tables of collectives and messages: matched across ranks, and as NCCL describes them."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from traincope.analysis.communication.axis_operations import parts_in_steps
from traincope.arrays import Ints
from traincope.events import NO_STEP
from traincope.store.segments.nccl import NcclOperation, nccl_operations
from traincope.tables.sources import Sources
from traincope.tables.steps import COUNTED, DETAILED
from traincope.tables.view import AXIS_TIME, RANK, RUN, STEP, WORDS, Column, Columns, View, texts, words
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


def _nccl(sources: Sources) -> Iterator[Columns]:
    for rank in sources.timeline.ranks:
        operations = [each for records in rank.threads.values() for each in nccl_operations(records)]
        if operations:
            yield {"rank": np.full(len(operations), rank.rank, dtype=np.int32), **_described(operations)}


def _described(operations: Sequence[NcclOperation]) -> Columns:
    def numbers(value: Callable[[NcclOperation], int | None], kind: pa.DataType) -> pa.Array:
        return pa.array([value(each) for each in operations], type=kind)

    int32, int64 = pa.int32(), pa.int64()
    return {
        "step": numbers(lambda each: None if each.step == NO_STEP else each.step, int32),
        "communicator": texts(
            [None if each.communicator is None else f"{each.communicator:016x}" for each in operations]
        ),
        "communicator_rank": numbers(lambda each: each.rank, int32),
        "communicator_size": numbers(lambda each: each.num_ranks, int32),
        "function": texts([each.function for each in operations]),
        "message": np.array([each.is_message for each in operations]),
        "sequence": numbers(lambda each: each.sequence, int64),
        "peer": numbers(lambda each: each.peer, int32),
        "datatype": texts([each.datatype for each in operations]),
        "bytes": numbers(lambda each: each.num_bytes, int64),
        "algorithm": texts([each.algorithm for each in operations]),
        "protocol": texts([each.protocol for each in operations]),
        "channels": numbers(lambda each: each.announced or None, int32),
        "channels_begun": numbers(lambda each: each.begun, int32),
        "channels_ended": numbers(lambda each: each.ended, int32),
        "call_ns": numbers(lambda each: each.call_ns, int64),
        "enqueued_ns": numbers(lambda each: each.enqueued_ns, int64),
        "start_ns": numbers(lambda each: each.start_ns, int64),
        "end_ns": numbers(lambda each: each.end_ns, int64),
        "gpu_start_ns": numbers(lambda each: each.device_start_ns, int64),
        "gpu_end_ns": numbers(lambda each: each.device_end_ns, int64),
        "gpu_duration_ns": numbers(lambda each: each.device_duration_ns, int64),
        "interface": numbers(lambda each: each.version, int32),
    }


def _hash(communicator: int | None) -> str | None:
    return None if communicator is None else f"{communicator:016x}"


SEEN = f"when the host saw it; {AXIS_TIME}"
GPU_TIME = "by the GPU's global timer, a clock of its own"
NCCL_VIEW = View(
    name="nccl",
    row="one operation of one rank, by NCCL's plugin (docs/reference/nccl-plugin.md); no rows without it",
    columns=(
        RUN,
        RANK,
        STEP,
        Column("communicator", type=pa.string(), help="NCCL's hash of it, the same on its ranks; null: not recorded"),
        Column("communicator_rank", type=pa.int32(), help="this rank in the communicator; null: not recorded"),
        Column(
            "communicator_size", type=pa.int32(), help="ranks of the communicator; null: not recorded, or NCCL 2.26"
        ),
        Column("function", type=pa.string(), help="for example `AllReduce` or `Send`; null: not recorded"),
        Column("message", type=pa.bool_(), help="it is a send or a receive", nullable=False),
        Column(
            "sequence",
            type=pa.int64(),
            help="count of the function on the communicator; of a message, of its function and peer",
            nullable=False,
        ),
        Column("peer", type=pa.int32(), help="root, or other rank of a message, in the communicator", nullable=False),
        Column("datatype", type=pa.string(), help="NCCL's name; null: not recorded"),
        Column("bytes", type=pa.int64(), unit="bytes", help="size as nccl-tests count it; null: unknown"),
        Column("algorithm", type=pa.string(), help="for example `RING`; null: a message, or not recorded"),
        Column("protocol", type=pa.string(), help="for example `LL128`; null: a message, or not recorded"),
        Column("channels", type=pa.int32(), help="channels that NCCL announces; null: unknown"),
        Column("channels_begun", type=pa.int32(), help="channels that have begun", nullable=False),
        Column("channels_ended", type=pa.int32(), help="channels that have ended", nullable=False),
        Column(
            "call_ns", type=pa.int64(), unit="ns", help=f"NCCL noted it, after its kernel; {AXIS_TIME}", nullable=False
        ),
        Column("enqueued_ns", type=pa.int64(), unit="ns", help=f"NCCL had noted it; {AXIS_TIME}; null: it had not"),
        Column("start_ns", type=pa.int64(), unit="ns", help=f"begin of the first channel, {SEEN}; null: none began"),
        Column("end_ns", type=pa.int64(), unit="ns", help=f"end of the last channel, {SEEN}; null: not all ended"),
        Column(
            "gpu_start_ns", type=pa.int64(), unit="ns", help=f"begin of the first channel, {GPU_TIME}; null: unknown"
        ),
        Column("gpu_end_ns", type=pa.int64(), unit="ns", help=f"end of the last channel, {GPU_TIME}; null: unknown"),
        Column(
            "gpu_duration_ns",
            type=pa.int64(),
            unit="ns",
            help="gpu_end - gpu_start, with the wait for others; null: unknown",
        ),
        Column("interface", type=pa.int32(), help="version of NCCL's profiler interface; null: not recorded"),
    ),
    make=_nccl,
)
