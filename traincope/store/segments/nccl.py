"""Records of the plugin for NCCL's profiler interface (`native/nccl_profiler/`), and the operations that they describe.

Their fields have meanings of their own:

- NCCL_CALL: NCCL enqueues an operation. `name`: numbers of four texts, a byte each: function, algorithm, protocol, data
  type. `group`: number of the communicator. `sequence`: NCCL's count of the function on the communicator; of a message,
  the plugin's count for this peer and direction. `peer`: root, or the other rank of a message, in the communicator.
  `tag`: the channels that NCCL announces, 0: unknown. `value`: elements. `window`: number of the operation.
- NCCL_RUN: from the begin of its first channel to the end of its last one, as the host saw them. `window`: number of
  the operation. `peer`, `tag`: channels that have begun and ended; without one, `start_ns` is that of the call. With
  DEVICE, `value` is the begin of the first channel by the GPU's global timer, and `group` and `sequence` together are
  the time to the end of the last one. PARTIAL: the plugin waits for no more channels, and some are missing.
- NCCL_COMMUNICATOR: an instant. `name`: its number. `group` and `sequence`: its hash. `peer`: this rank in it. `tag`,
  `window`: ranks and nodes, 0: unknown. `value`: version of the interface.
- NCCL_TEXT: an instant. `name`: its number. The bytes from `group` to `window`: the text, cut to 20 bytes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, RECORD_BYTES, Flag, Kind
from traincope.store.segments.segments import RECORD_DTYPE

TEXT_AT, TEXT_BYTES = 32, 20
FUNCTION, ALGORITHM, PROTOCOL, DATATYPE = 0, 8, 16, 24
"""Position of a text's number among the bits of a call's `name`."""
ELEMENT_BYTES = {
    "ncclInt8": 1, "ncclUint8": 1, "ncclFloat8e4m3": 1, "ncclFloat8e5m2": 1, "ncclFloat16": 2, "ncclBfloat16": 2,
    "ncclInt32": 4, "ncclUint32": 4, "ncclFloat32": 4, "ncclInt64": 8, "ncclUint64": 8, "ncclFloat64": 8,
}  # fmt: skip
OF_ONE_RANK = ("AllGather", "ReduceScatter")
"""Functions whose number of elements is that of one rank's part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclOperation:
    """One operation of one rank, as NCCL describes it. Times are the host's monotonic clock unless named otherwise."""

    number: int
    step: int
    version: int | None
    """Version of the interface. This and other fields of the communicator: None if its record is lost."""
    communicator: int | None
    """NCCL's hash of it, the same on its ranks."""
    rank: int | None
    """This rank in the communicator."""
    num_ranks: int | None
    function: str | None
    algorithm: str | None
    protocol: str | None
    datatype: str | None
    is_message: bool
    sequence: int
    peer: int
    elements: int
    announced: int
    begun: int
    ended: int
    """Channels: announced by NCCL (0: unknown), begun and ended."""
    call_ns: int
    enqueued_ns: int | None
    start_ns: int | None
    """The begin of the first channel, when the host saw it; None without one."""
    end_ns: int | None
    """The end of the last channel, when the host saw it; None if it has not come, or channels are missing."""
    device_start_ns: int | None
    """By the GPU's global timer. None without its times on all channels, and while `end_ns` is None."""
    device_end_ns: int | None

    @property
    def device_duration_ns(self) -> int | None:
        if self.device_start_ns is None or self.device_end_ns is None:
            return None
        return self.device_end_ns - self.device_start_ns

    @property
    def num_bytes(self) -> int | None:
        """Size as nccl-tests count it: all ranks' parts of a gather or a reduce-scatter. None if it is unknown."""
        size = ELEMENT_BYTES.get(self.datatype or "")
        parts = self.num_ranks if self.function in OF_ONE_RANK else 1
        return None if size is None or parts is None else size * parts * self.elements


@dataclass(frozen=True, slots=True, kw_only=True)
class _Communicator:
    hash: int
    rank: int
    num_ranks: int | None
    version: int


def nccl_operations(records: NDArray[np.void]) -> tuple[NcclOperation, ...]:
    """The operations among the records of one rank, in the order of their calls."""
    texts, communicators = _texts(records), _communicators(records)
    runs = {int(run["window"]): run for run in records[records["kind"] == Kind.NCCL_RUN]}
    calls = records[records["kind"] == Kind.NCCL_CALL]
    return tuple(_operation(call, runs.get(int(call["window"])), texts, communicators) for call in calls)


def _operation(
    call: np.void, run: np.void | None, texts: dict[int, str], communicators: dict[int, _Communicator]
) -> NcclOperation:
    name, announced = int(call["name"]), int(call["tag"])
    of = communicators.get(int(call["group"]))
    begun, ended = (0, 0) if run is None else (int(run["peer"]), int(run["tag"]))
    is_complete = run is not None and run["end_ns"] != OPEN and 0 < begun == ended >= announced
    device = None
    if run is not None and is_complete and run["flags"] & Flag.DEVICE:
        device = int(run["value"]), int(run["value"]) + int(run["group"]) + (int(run["sequence"]) << 32)
    return NcclOperation(
        number=int(call["window"]),
        step=int(call["step"]),
        version=None if of is None else of.version,
        communicator=None if of is None else of.hash,
        rank=None if of is None else of.rank,
        num_ranks=None if of is None else of.num_ranks,
        function=texts.get(name >> FUNCTION & 0xFF),
        algorithm=texts.get(name >> ALGORITHM & 0xFF),
        protocol=texts.get(name >> PROTOCOL & 0xFF),
        datatype=texts.get(name >> DATATYPE & 0xFF),
        is_message=bool(call["flags"] & Flag.POINT_TO_POINT),
        sequence=int(call["sequence"]),
        peer=int(call["peer"]),
        elements=int(call["value"]),
        announced=announced,
        begun=begun,
        ended=ended,
        call_ns=int(call["start_ns"]),
        enqueued_ns=None if call["end_ns"] == OPEN else int(call["end_ns"]),
        start_ns=int(run["start_ns"]) if run is not None and begun else None,
        end_ns=int(run["end_ns"]) if run is not None and is_complete else None,
        device_start_ns=None if device is None else device[0],
        device_end_ns=None if device is None else device[1],
    )


def _texts(records: NDArray[np.void]) -> dict[int, str]:
    """Number -> text."""
    chosen = np.ascontiguousarray(records[records["kind"] == Kind.NCCL_TEXT], dtype=RECORD_DTYPE)
    content = chosen.view(np.uint8).reshape(len(chosen), RECORD_BYTES)[:, TEXT_AT : TEXT_AT + TEXT_BYTES]
    return {
        int(number): row.tobytes().rstrip(b"\0").decode(errors="replace")
        for number, row in zip(chosen["name"], content, strict=True)
    }


def _communicators(records: NDArray[np.void]) -> dict[int, _Communicator]:
    """Number -> communicator."""
    return {
        int(record["name"]): _Communicator(
            hash=int(record["group"]) + (int(record["sequence"]) << 32),
            rank=int(record["peer"]),
            num_ranks=int(record["tag"]) or None,
            version=int(record["value"]),
        )
        for record in records[records["kind"] == Kind.NCCL_COMMUNICATOR]
    }
