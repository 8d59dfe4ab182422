"""The event record: its fields, and the layout of its 56 bytes on disk.

A record is written *open* (`end_ns == OPEN`) when something starts, and closed in place when it ends. So a process that
dies leaves a record of what it was in. `kind` is the last byte of the layout and is written last: a record whose
writing was cut short has kind 0 and does not count.

The fields by kind (a field not listed is unused):

| kind       | interval                        | name      | group    | sequence     | peer         | value    |
|------------|---------------------------------|-----------|----------|--------------|--------------|----------|
| STEP       | one training step               |           |          |              |              | own ns   |
| PHASE      | a `Phase` of this thread        | what ran  |          |              |              |          |
| ACTION     | pipeline action without receive | F/B/I/W   | schedule | microbatch   | stage        |          |
| COLLECTIVE | the call to its completion      | operation | number   | its count    | root or peer | bytes    |
| STALL      | the thread waits for it         | operation | number   | its count    | root or peer | bytes    |
| SPAN       | `traincope.span(name)`          | name      |          | `NEW_GROUP`  |              |          |
| EVENT      | instant: an event, a fault      | name      | details  |              |              |          |
| CLOCK      | instant: wall and monotonic     |           |          |              |              | wall ns  |
| DROPPED    | instant: records dropped since  |           |          |              |              | number   |
| MEMORY     | instant: after a `Phase`, step  | measure   |          |              |              | bytes    |
| SCALAR     | instant: `run.log(name=value)`  | name      |          |              |              | bits     |
| FLOPS      | instant: a counted step's end   | dtype     |          |              |              | FLOPs    |
| GPU        | instant: after a step           | quantity  |          |              |              | reading  |
| BATCH      | instant: a DataLoader's batch   | state     | iterator | its count    |              | hash     |
| USAGE      | instant: once a second          | a `Usage` |          |              |              | total    |
| NCCL_...   | see `store/segments/nccl.py`    |           |          |              |              |          |

The value of a STEP is the recorder's own time in it. The value of a STEP, PHASE or ACTION that was measured on the
device is how many ns after the host had queued its begin this happened there; its `tag` is the same of its end, at
most 2.1 s. The `tag` of a STALL of the device is how many ns before it the compute stream reached the issue of the
collective that ends it, or NOT_MARKED; for a message, its `value` is. It has DONE_BEFORE_WAIT if that end is only an
upper bound. Of the messages of a batch, the first has the STALL, and each other one an empty one at its end.
The flags of a COLLECTIVE or STALL contain the `Element` of its message in their highest bits (`ELEMENT_SHIFT`). The
value of a SCALAR is the bits of a 64-bit float. The value of a GPU record has the unit in `GPU_SAMPLE_UNITS`. A
FLOPS record has the counted `Work` as its `tag`, and the phase that it was done for. An ACTION without gradients has
phase EVALUATION. The value of a BATCH is 0 if its name is not `BATCH_READ`; its `tag` is
a `SamplerTrait`, above `LENGTH_SHIFT` the length of a pass, and above `WORKERS_SHIFT` the number of the DataLoader's
workers.

`name`, `group` (an ACTION's schedule) and an EVENT's details are line numbers: names in the rank's `names.jsonl`,
details in its `details.jsonl`, groups in its `groups.jsonl`. The instance of a collective is (group, window,
sequence). The instance of a point-to-point operation is (group, source, destination, tag, window, sequence): `peer` is
the other side's rank, and the operation names this side. `window` is the first step of the window in which the
collective was issued; counts begin anew in every window. The `tag` of a group's first collective in a window is torch's
own count on the group plus 1 (0: unknown): it shows members that began to count at different collectives. Times are
`time.monotonic_ns()` of the host.
"""

import struct
from enum import IntEnum, IntFlag, StrEnum

FORMAT_VERSION = 3
"""Version of the run directory's layout, this record included."""

READABLE_VERSIONS = (1, 2, 3)
"""In version 1, lines of the side files had no numbers, and the details of events were names. Before version 3, the
whole run was one window.
"""

OPEN = -1
"""`end_ns` of a record without a recorded end."""
END_OF_TIME_NS = 1 << 62
"""Later than every time of a record. The sum with any of them still fits into 64 bits."""

CLEAN = "clean"
"""Ending of a rank that left its run without an exception. Other endings are an exception's name, or empty."""

EXCEPTION = "exception"
"""Name of the event that records a rank's exception."""

LEFT = "exit"
"""Name of the event at a call that ends the process; details: `call`, `code`, `at`, and those of an exception."""

THREAD_ENDED = "thread ended"
"""Name of the event of an exception that ended another thread than the main one; details: `thread`, and its own."""

BUSY_THREAD = "busy thread"
"""Name of the event at another Python thread that computes; details: `thread`, `runs`, `busy_ns`, `of_ns`."""

RECORDER_LEVEL = "recorder level"
"""Name of the event that records a change of the recorder's level; details: `was`, `level`, `why`."""

REQUESTED_WINDOW = "requested window"
"""Name of the event at the begin of a requested window; details: `why`, `first_step`, `steps`."""

TENSOR_CENSUS = "tensor census"
"""Name of the event with the live tensors of a rank; details: `groups`, `seconds`, `unseen_bytes` (`census.py`)."""

SIGNAL_HANDLED = "signal handled"
"""Name of the event at a signal that the training's own handler takes; details: `signal`."""

OUTSIDE_DDP = "parameters outside DDP"
"""Name of the event about parameters that DDP does not reduce; details: `parameters`, `bytes`, `reduced_bytes`,
`first`.
"""

OUTSIDE_UNITS = "parameters outside units"
"""Name of the events about parameters that are in no unit of FSDP or DDP; details: first `of` (FSDP or DDP), `units`,
`replicas` (first, last and number of the ranks that each unit has), `parameters`, `bytes` and `names`, then `step` and
`sums`.
"""

LEARNING_RATES = "learning rates"
"""Name of the event with the rates of an optimizer whose parameters DDP reduces; details: `optimizer`, its number,
`replicas`, first, last and number of the ranks with the same gradients, and of each group `parameters` and `rates`.
"""

DEBUG_TOOL = "debugging tool"
"""Name of the event in the first step in which a tool of the training that slows it down is on; details: `of`, a
`DebugTool`. Each such step has `Flag.DEBUGGED`.
"""

GROUP_DESTROYED = "process group destroyed"
"""Name of the event after the training has destroyed its default process group."""

LINK_CHANGED = "host link changed"
"""Name of the event of a port of the host's network, or a card's slot, whose state is another than before; details:
`port`, `was_up`, and those fields of its state in `RankInfo.links` that change.
"""

LINK_ERRORS = "host link errors"
"""Name of the event of errors of a port or slot; details: `port`, `counts` (their growth by the kernel's names),
`sent_packets` and `seconds`, in which both grew.
"""

KERNEL_LOG = "kernel log"
"""Name of the event of a line of the kernel's log; details: `of`, a `KernelError`, `kernel_message`."""

CHECKPOINT_SAVED = "checkpoint saved"
"""Name of the event at the end of an asynchronous save."""

CHECKPOINT_FAILED = "checkpoint failed"
"""Name of the event that records a failed asynchronous save."""

CHECKPOINT_UPLOADED = "checkpoint uploaded"
"""Name of the event at the end of an upload; details: `step`, `seconds`, `bytes`."""

CHECKPOINT_NOT_UPLOADED = "checkpoint not uploaded"
"""Name of the event of an upload that failed or did not begin; details: `step`, `seconds`, `error`."""

RESUMED = "resumed"
"""Name of the event by which a training declares that it continues; details: `step`, the steps of its state."""

ZEROING = "zero_grad"
"""Name of an OPTIMIZER phase that is a call of `zero_grad`."""
GRADIENT_FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")
"""Functions of `torch.nn.utils` that are OPTIMIZER phases of their name. All others are optimizers' steps."""

LOADER = "DataLoader"
"""Name of a DATA_WAIT in a DataLoader whose workers make the batches."""
LOADER_WITHOUT_WORKERS = "DataLoader without workers"
"""Name of a DATA_WAIT in a DataLoader that makes its batches in the training thread (`num_workers=0`)."""

BATCH_READ = "batch"
"""Name of a BATCH with a fingerprint."""
BATCHES_END = "end of the batches"
"""Name of a BATCH that stands for the end of an iterator."""
BATCH_ON_DEVICE = "batch on a device"
"""Name of a BATCH that was not read, because reading a device's memory would wait for the device."""
BATCH_WITHOUT_TENSORS = "batch without plain tensors"
"""Name of a BATCH that was not read, because it has nothing whose memory can be read at once."""


class SamplerTrait(IntFlag):
    """The `tag` of a BATCH: what is known of the DataLoader's sampler."""

    KNOWN = 1
    SHUFFLES = 2
    DIVIDES = 4
    """It gives each rank another part of the data."""
    STREAM = 8
    """The dataset is iterable: it has no sampler, and each worker has a copy of it."""
    REPEATS = 1 << 26
    """It gives samples several times on purpose."""


LENGTH_SHIFT, MAX_LENGTH = 4, 15
"""Bit of the `tag` of a BATCH from which on it has the number of batches that the iterator can give, at most this one;
0 if it is unknown.
"""

WORKERS_SHIFT, MAX_WORKERS = 8, (1 << 16) - 1
"""Bit of the `tag` of a BATCH from which on it has the number of the DataLoader's workers, at most this one."""


ROLLBACK = "rollback"
"""Name of the event by which a training declares that it went back to an earlier state; details: `step`, the steps of
that state, `why`, and by the recorder `undone`, the number of undone steps, and `last`, the last of them.
"""

LONG_SAMPLE = "long sample"
"""Name of the event of a sample of a rollout that is longer than all before on its rank; details: `id`, `tokens`, and
`tool_seconds` if it is known.
"""
ROLLOUT_SAMPLES, ROLLOUT_PROMPTS, ROLLOUT_GENERATED, ROLLOUT_DISCARDED, ROLLOUT_LONGEST, ROLLOUT_HALF = ROLLOUT = (
    "rollout.samples",
    "rollout.prompt_tokens",
    "rollout.generated_tokens",
    "rollout.discarded_tokens",
    "rollout.longest",
    "rollout.half_done",
)
"""Names of the logged values of one batch of rollouts: samples, tokens, tokens of the longest sample, and tokens after
which fewer than half of the samples still generate.
"""

SKIPPED_STEP = "skipped step"
"""Name of the event by which a training declares that the open step updates nothing; details: `why`."""

FIRST_NOT_FINITE = "first value that is not finite"
"""Name of the event of a step with such values on a rank, after one without; details: `step`, `place`, the module or
parameter of the step's first one, and `of`, what it is.
"""

FIRST_JUMP = "first value far above its usual size"
"""Name of the event of a step with such values on a rank; details: `step`, `place`, the module or parameter of the
step's first one, `of`, what it is, and `times`, its size relative to the largest one in the steps before.
"""

DETAIL_LEVEL = 1
"""The lowest level of recording with detail."""

BLOCK_STEPS = 7
"""Steps of a block. A window is a block, or several, in detail; its first step only leads in, so more waste less.

A prime: in blocks of 8, work in every 8th or 16th step would fall on first steps only, and would never be sampled.
"""
FIRST_BLOCKS = 12
"""Number of first blocks that are windows, so that few steps give an answer."""
EARLY_STEPS = range(BLOCK_STEPS, 5 * BLOCK_STEPS)
"""Steps in which every rank of several samples its stack, for some seconds."""

NOT_MARKED = -1
"""In place of the time since a collective's issue: it has no mark, or the STALL lasted until a later collective."""

MAX_LATENCY_NS = 200_000
"""A GPU with nothing to do passes a mark within this, the error between its clock and the host's included."""
EMPTY_NS = 20_000
"""A mark found nothing to do if it happened at most this later than the fastest one: launches vary by about as much."""

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
    BATCH = 14
    USAGE = 15
    NCCL_CALL = 16
    NCCL_RUN = 17
    NCCL_COMMUNICATOR = 18
    NCCL_TEXT = 19


class Usage(StrEnum):
    """Names of USAGE records: totals as the kernel counts them, mostly of the training thread."""

    CORE_WAIT = "wait for a core"
    """Time in ns in which it could run and had no core: others used those that it may run on."""
    CPU_TIME = "CPU time"
    """Time in ns in which it ran."""
    PROCESS_CPU_TIME = "CPU time of the process"
    """Time in ns in which threads of its process ran, added up. Child processes do not count."""
    WORKERS_CPU_TIME = "CPU time of loader workers"
    """Time in ns in which the workers of the rank's DataLoaders ran, added up, in ticks of the kernel's clock."""
    MAJOR_FAULTS = "major page faults"
    """Number of pages that it had to wait for until they were read from a disk."""
    HOST_IDLE = "idle time of the host"
    """Time in ns in which cores of the host had nothing to run, added up."""
    THROTTLED = "CPU quota used up"
    """Length in ns of the periods in which its cgroup used up its CPU quota."""
    MEMORY_STALL = "stalled by memory"
    """Time in ns in which a thread of its cgroup, or of the host, waited until memory was free."""


GPU_SAMPLE_UNITS = {"power": "mW", "SM clock": "MHz", "temperature": "C", "utilization": "%"}
"""Name of a GPU record -> the unit of its value."""
GPU_ENERGY = "energy"
"""Name of a GPU record of the whole GPU's energy since its driver was loaded, in mJ. The time of GPU records is that of
the reading.
"""


class MemoryMeasure(StrEnum):
    """Names of MEMORY records. Those of one instant have one `start_ns`."""

    RESIDENT = "resident"
    """Memory of the process on the host. It stands for the total on a rank without a GPU."""
    PEAK_RESIDENT = "peak resident"
    LOADER_WORKERS = "loader workers"
    """Resident memory of the workers of the rank's DataLoaders. Pages that they share with the rank count too."""
    ALLOCATED = "allocated"
    """Bytes of live tensors in torch's allocator on the GPU."""
    RESERVED = "reserved"
    """Bytes that the allocator holds of the GPU: `allocated` and what is free in its segments."""
    PEAK_ALLOCATED = "peak allocated"
    RECENT_PEAK_ALLOCATED = "recent peak allocated"
    """Peak since the reading before; only if the recorder may reset the allocator's peak counter."""
    PARAMETERS = "parameters"
    """This measure and those below: bytes of this rank's tensors by their use, on the device of the total."""
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    BUFFERS = "communication buffers"


HELD = (MemoryMeasure.PARAMETERS, MemoryMeasure.GRADIENTS, MemoryMeasure.OPTIMIZER, MemoryMeasure.BUFFERS)
"""Measures of tensors by their use. No byte is in two of them."""


class Phase(IntEnum):
    """Activities of the computing thread (or the device); the ledger's terms for the host."""

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
    EXPOSED_MEMORY = 11
    LAUNCH_GAP = 12
    OTHER_COMPUTE = 13
    """Compute of a device that the records give no phase."""
    KERNEL_WAIT = 14
    JOB_WAIT = 15
    """Wait for another job of the workflow."""
    OBJECTS = 16
    """A collective of Python objects: pickling and unpickling, and what its collectives leave of the call."""
    GENERATE = 17
    REWARD = 18
    LOGPROB = 19
    ADVANTAGE = 20
    WEIGHT_SYNC = 21
    ENVIRONMENT = 22
    NAMED = 23
    """A part of the step with a name of the training's own, `traincope.phase(name)`."""


APART = {
    phase.name.lower(): phase
    for phase in (
        Phase.GENERATE,
        Phase.REWARD,
        Phase.LOGPROB,
        Phase.ADVANTAGE,
        Phase.WEIGHT_SYNC,
        Phase.ENVIRONMENT,
        Phase.NAMED,
    )
}
"""Name -> a part of a step that is not training, as in post-training with reinforcement. It owns all time inside it."""


class Work(IntEnum):
    """Kinds of FLOPs in a FLOPS record. Attention counts in full, also if it is causal."""

    MATMUL = 1
    ATTENTION = 2
    CAUSAL_ATTENTION = 3
    ATTENTION_AGAIN = 4
    """Recomputed inside a fused kernel's backward."""
    CAUSAL_ATTENTION_AGAIN = 5
    IMPLIED = 6
    """2 x parameters x tokens of the modules that ran: expected, not counted."""
    COVERED = 7
    """The part of IMPLIED in modules that ran counted products."""
    CAUSAL_PRODUCTS = 8
    """Causal attention by single products, which also multiply the masked half."""
    MASKED_ATTENTION = 9
    """Causal attention by a kernel that gets its mask as a tensor, and so computes the masked half too."""
    BY_MODULE = 10
    """Products with a module's weight in a kernel that cannot be counted: by the shapes of weight and input."""
    HIDDEN_ATTENTION = 11
    """Products of queries and keys of different documents, which a mask hides: executed, but not the model's."""


class Flag(IntFlag):
    ASYNC = 1
    """The caller requested an asynchronous collective."""
    DONE_BEFORE_WAIT = 2
    """Complete at the first wait: `end_ns` is an upper bound, and the stall is not a wait."""
    RAISED = 4
    """The enclosed call raised."""
    GUESSED = 8
    """A step inferred from the training's actions, not from `run.step()`."""
    DEVICE = 16
    """The interval was measured on the device (a pair of CUDA events), not by the host's clock."""
    POINT_TO_POINT = 32
    """A send or receive: the instance is (group, source, destination, tag, sequence)."""
    PARTIAL = 64
    """An interval that began but had not trained when the run ended, or when the training resumed. It is not a step."""
    SKIPPED = 128
    """A step whose optimizer did not run: its gradients overflowed, or the training declared `SKIPPED_STEP`."""
    GIVEN = 256
    """An event of the training, from `traincope.event()`. The others are the recorder's own."""
    DETAILED = 512
    """A step with all its collectives, waits and pipeline actions. The first step of a window does not count as such:
    what it waits for may have begun before.
    """
    REQUESTED = 1024
    """A step that has detail only because of a request: it is not a sample of the run."""
    BATCHED = 2048
    """A STALL of the device for a message that runs in one batch with the message before it."""
    BY_BACKWARD = 4096
    """A step whose true borders are unknown: no update of the weights was seen, or only signs that leave a doubt."""
    DEBUGGED = 8192
    """A step in which a `DebugTool` was on. A COLLECTIVE or STALL has its `Element` in this bit."""


class DebugTool(StrEnum):
    """Tools that slow down a training while they look into it. The value is the name that people read."""

    PROFILER = "torch's profiler"
    ANOMALIES = "autograd's anomaly detection"
    PROFILE_FUNCTION = "a profiler of Python"
    TRACE_FUNCTION = "a tracer of Python"
    ALLOCATIONS = "tracemalloc"


class KernelError(StrEnum):
    """Errors that the kernel logs. The value is the name that people read."""

    XID = "error of a GPU (XID)"
    BUS = "error on the PCIe bus"
    MACHINE_CHECK = "machine check"
    OUT_OF_MEMORY = "out of memory"
    TRANSMIT_TIMEOUT = "network card that does not send"


class Element(IntEnum):
    """Type of the elements of a message."""

    UNKNOWN = 0
    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3
    BYTE = 4
    """Any type of 8 bits."""
    INTEGER = 5
    FLOAT64 = 6
    OTHER = 7


ELEMENT_SHIFT = 13
"""Position of the lowest bit of the `Element` in the flags of a COLLECTIVE or STALL."""

DDP_BUFFERS = "buffers of DistributedDataParallel"
"""Name of the SPAN in which DDP broadcasts its module's buffers before a forward."""

NEW_GROUP = "new_group"
"""Begin of the name of a SPAN in which the rank makes a process group; the line that does follows. Its sequence is
torch's number of the group, at least 1.
"""

DEVICE_MESSAGE = Flag.DEVICE | Flag.POINT_TO_POINT
"""Flags of a STALL whose `value` is a time, not bytes."""

LAYOUT = struct.Struct("@qqqiIIIiiIHBB")
"""start_ns end_ns value | step name group sequence peer tag | window flags phase kind (native order)."""

SPAN_LAYOUT = struct.Struct("@qq8xiI23xB")
"""start_ns end_ns | step name | kind: the same record for a SPAN, zero in the other fields. It costs half."""

PHASE_LAYOUT = struct.Struct("@qq8xiI22xBB")
"""start_ns end_ns | step name | phase kind: the same for a PHASE."""

RECORD_BYTES = LAYOUT.size
VALUE_WORD = 2
END_WORD = 1
"""Index of `end_ns` among a record's 64-bit words. Closing a record is one aligned store."""

FLAGS_WORD = 6
FLAGS_SHIFT = 32
"""Position of `flags` among a record's words, to add a flag in place (little-endian hosts)."""

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
    ("window", "u4"),
    ("flags", "u2"),
    ("phase", "u1"),
    ("kind", "u1"),
)
"""The same layout as a list of numpy fields, for readers."""

SEND_OPERATIONS = frozenset({"send"})
RECEIVE_OPERATIONS = frozenset({"recv", "recv_any_source"})
"""Point-to-point operations by side. A sender's record has the destination as `peer`."""
MONITORED = "monitored_barrier"
CARRY_NOTHING = frozenset({"barrier", MONITORED})
"""Operations that synchronise without bytes. Other operations without bytes may return at once."""
