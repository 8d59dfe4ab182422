"""The one record type: what an event is, and how its 56 bytes lie on disk.

A record is written *open* (`end_ns == OPEN`) when something starts and closed in place when it
ends, so a process that dies leaves behind what it was in. `kind` is the last byte of the layout
and is written last: a record whose writing was cut short has kind 0 and was never begun.

What the fields hold, by kind (a field not named is unused):

| kind       | interval                        | name      | group    | sequence     | peer         | value    |
|------------|---------------------------------|-----------|----------|--------------|--------------|----------|
| STEP       | one training step               |           |          |              |              | own ns   |
| PHASE      | a `Phase` of this thread        | what ran  |          |              |              |          |
| ACTION     | pipeline action without receive | F/B/I/W   | schedule | microbatch   | stage        |          |
| COLLECTIVE | the call to its completion      | operation | number   | its count    | root or peer | bytes    |
| STALL      | thread stood still for it       | operation | number   | its count    | root or peer | bytes    |
| SPAN       | `traincope.span(name)`          | name      |          |              |              |          |
| EVENT      | instant: an event, a fault      | name      | details  |              |              |          |
| CLOCK      | instant: wall beside monotonic  |           |          |              |              | wall ns  |
| DROPPED    | instant: records lost since     |           |          |              |              | how many |
| MEMORY     | instant: after a `Phase`, or a step | measure | |         |              |              | bytes    |
| SCALAR     | instant: `run.log(name=value)`  | name      |          |              |              | bits     |
| FLOPS      | instant: a counted step's end   | dtype     |          |              |              | FLOPs    |
| GPU        | instant: after a step           | reading   |          |              |              | `GPU_READINGS` |

A STEP's value is what the recorder itself spent in it, a SCALAR's the bits of a 64-bit float.
A FLOPS's `tag` is the `Work` that was counted, its phase what it was done for.
An ACTION without gradients has phase EVALUATION. `name`, `group` (an ACTION's schedule) and an EVENT's
details are numbers of lines: names in the rank's `names.jsonl`, details in its `details.jsonl`,
groups in its `groups.jsonl`. The instance of a collective is (group, sequence); that of a point-to-point
operation is (group, source, destination, tag, sequence), where `peer` is the other side's rank and
the operation says which side this is. Times are `time.monotonic_ns()` of the host.
"""

import struct
from enum import IntEnum, IntFlag

FORMAT_VERSION = 2
"""Version of the run directory's layout, this record included."""

READABLE_VERSIONS = (1, 2)
"""1: lines of the side files had no numbers, and the details of events were names."""

OPEN = -1
"""`end_ns` of a record whose end has not been seen."""

CLEAN = "clean"
"""How a rank ended that left its run without an exception; else it is the exception's name, or nothing."""

NO_STEP = -1
"""`step` of a record outside every step."""

NO_PEER = -1
"""`peer` of a record that has neither root nor peer."""


class Kind(IntEnum):
    STEP = 1
    PHASE = 2
    ACTION = 3
    COLLECTIVE = 4
    STALL = 5
    SPAN = 6
    EVENT = 7
    CLOCK = 8
    DROPPED = 9
    SCALAR = 10
    MEMORY = 11
    FLOPS = 12
    GPU = 13


GPU_READINGS = {"power": "mW", "SM clock": "MHz", "temperature": "C", "utilization": "%"}
"""Name of a GPU record -> the unit of its value."""


class Phase(IntEnum):
    """What the computing thread (or the device) was busy with; the ledger's host terms."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    RECOMPUTE = 3
    OPTIMIZER = 4
    DATA_WAIT = 5
    CHECKPOINT_STALL = 6
    GC = 7
    COMPILE = 8
    SYNC = 9
    EVALUATION = 10


class Work(IntEnum):
    """What the FLOPs of a FLOPS record were spent on; attention is counted whole, also where causal."""

    MATMUL = 1
    ATTENTION = 2
    CAUSAL_ATTENTION = 3
    ATTENTION_AGAIN = 4
    """Recomputed inside a fused kernel's backward."""
    CAUSAL_ATTENTION_AGAIN = 5
    IMPLIED = 6
    """2 x parameters x tokens of the modules that ran: not counted but expected."""
    COVERED = 7
    """The part of it whose modules ran products that were counted."""


class Flag(IntFlag):
    ASYNC = 1
    """The caller asked for an asynchronous collective."""
    DONE_BEFORE_WAIT = 2
    """It was complete when first waited for: `end_ns` is an upper bound, the stall is no wait."""
    RAISED = 4
    """What the record encloses raised."""
    GUESSED = 8
    """A step found from what the training did, not from `run.step()`."""
    DEVICE = 16
    """The interval was measured on the device (event pair), not by the host's clock."""
    POINT_TO_POINT = 32
    """A send or receive: the instance is (group, source, destination, tag, sequence)."""
    PARTIAL = 64
    """A step that was begun but had not trained when the run ended: no step at all."""
    SKIPPED = 128
    """A step whose optimizer was not run: its gradients overflowed."""
    GIVEN = 256
    """An event that the training named, by `traincope.event()`; the others are the recorder's own."""


LAYOUT = struct.Struct("@qqqiIIIii4xHBB")
"""start_ns end_ns value | step name group sequence peer tag | flags phase kind (native order)."""

SPAN_LAYOUT = struct.Struct("@qq8xiI23xB")
"""start_ns end_ns | step name | kind: the same record for a SPAN, zero where it has nothing; half the cost."""

RECORD_BYTES = LAYOUT.size
RECORD_WORDS = RECORD_BYTES // 8
VALUE_WORD = 2
END_WORD = 1
"""Index of `end_ns` among a record's 64-bit words: closing a record is one aligned store."""

FLAGS_WORD = 6
FLAGS_SHIFT = 32
"""Where `flags` lie among a record's words, to add one in place (little-endian hosts)."""

FIELDS = (
    ("start_ns", "i8"),
    ("end_ns", "i8"),
    ("value", "i8"),
    ("step", "i4"),
    ("name", "u4"),
    ("group", "u4"),
    ("sequence", "u4"),
    ("peer", "i4"),
    ("tag", "i4"),
    ("reserved", "u4"),
    ("flags", "u2"),
    ("phase", "u1"),
    ("kind", "u1"),
)
"""The same layout as a list of numpy fields, for readers."""

SEND_OPERATIONS = frozenset({"send"})
RECEIVE_OPERATIONS = frozenset({"recv", "recv_any_source"})
"""Point-to-point operations by side: a sender's record has the destination as `peer`."""
