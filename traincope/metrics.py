"""Every number that leaves a running job, declared once: name, type, unit, help, labels.

Prometheus, OTLP, dashboards, rules and the documentation's table are made from `CATALOGUE`.
"""

from traincope.samples import GPU_LABELS as GPU_LABELS
from traincope.samples import NODE_LABELS as NODE_LABELS
from traincope.samples import RANK_LABELS as RANK_LABELS
from traincope.samples import Distribution as Distribution
from traincope.samples import Exemplar as Exemplar
from traincope.samples import Metric as Metric
from traincope.samples import Sample as Sample
from traincope.samples import Type as Type
from traincope.samples import Unit as Unit

STEP_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
OTHER_NODES = "In a job on several nodes, waiting for ranks of other nodes counts as transfer."
"""An agent sees the ranks of its node only."""
COLLECTIVE_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

RUN_INFO = Metric(
    name="run",
    type=Type.INFO,
    help="The run: its world size, its mesh, which attempt of it this is, and versions.",
    labels=(*NODE_LABELS, "world_size", "mesh", "attempt", "torch", "traincope"),
)
RANK_INFO = Metric(
    name="rank",
    type=Type.INFO,
    help="A rank: its coordinates on the mesh, as axis=index pairs, and its device.",
    labels=(*RANK_LABELS, "coords", "device"),
)

STEPS = Metric(name="steps", type=Type.COUNTER, help="Training steps finished since the attempt began.")
LAST_STEP = Metric(name="step.last", type=Type.GAUGE, help="Number of the training step that finished last.")
STEP_DURATION = Metric(
    name="step.duration",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Wall time of the training step that finished last.",
)
STEP_TIMES = Metric(
    name="step.time",
    type=Type.HISTOGRAM,
    unit=Unit.SECONDS,
    help="Wall times of the steps in the ledger, over the ranks of a node; exemplars name a step and its rank.",
    labels=NODE_LABELS,
    buckets=STEP_BUCKETS,
)
LEDGER = Metric(
    name="ledger",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Wall time of training steps by ledger term, and axis where the term has one (other: groups that nothing "
    "names); terms without any are left out. " + OTHER_NODES,
    labels=(*RANK_LABELS, "term", "axis"),
)
WALL = Metric(
    name="step.wall",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Wall time of the training steps in the ledger: of all but the run's first, which warms up.",
)
MFU = Metric(
    name="mfu",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Model FLOPs utilization of the node's ranks in the latest steps, causal attention halved.",
    labels=NODE_LABELS,
)
MFU_PAPER = Metric(
    name="mfu.paper",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Model FLOPs utilization of the node's ranks in the latest steps, attention not halved, as papers have it.",
    labels=NODE_LABELS,
)
HFU = Metric(
    name="hfu",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Hardware FLOPs utilization of the node's ranks in the latest steps, of all that was executed.",
    labels=NODE_LABELS,
)
TOKENS = Metric(
    name="tokens",
    type=Type.COUNTER,
    help="Tokens that the node's ranks trained on, their share of the job's, where the training told or logged them.",
    labels=NODE_LABELS,
)
BUBBLE = Metric(
    name="bubble",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Pipeline bubble of a stage in the latest steps: schedule, imbalance and jitter, as a share of the step.",
    labels=(*NODE_LABELS, "stage"),
)
BUBBLE_PART = Metric(
    name="bubble.part",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Part of a stage's pipeline bubble: schedule, imbalance or jitter, which are differences and may be negative.",
    labels=(*NODE_LABELS, "stage", "part"),
)
BUBBLE_THEORY = Metric(
    name="bubble.theory",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Pipeline bubble that the recorded schedule has by theory, as a share of the step.",
    labels=NODE_LABELS,
)
CAUSED_WAIT = Metric(
    name="caused.wait",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Time that ranks of this node stood still because this rank joined a collective last.",
)
LOGGED = Metric(
    name="logged",
    type=Type.GAUGE,
    help="What the training gave to run.log() last, by name: of the node's lowest rank that logs it, the first names.",
    labels=(*NODE_LABELS, "name"),
)

COLLECTIVE_TIMES = Metric(
    name="collective.duration",
    type=Type.HISTOGRAM,
    unit=Unit.SECONDS,
    help="Durations of collectives, from the call to their completion where that was seen, over the ranks of a node.",
    labels=(*NODE_LABELS, "axis", "op"),
    buckets=COLLECTIVE_BUCKETS,
)
COLLECTIVE_BYTES = Metric(
    name="collective.size",
    type=Type.COUNTER,
    unit=Unit.BYTES,
    help="Bytes of collectives as nccl-tests count them, over the ranks of a node.",
    labels=(*NODE_LABELS, "axis", "op"),
)
COLLECTIVE_TRANSFER = Metric(
    name="collective.transfer",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Time that collectives were on the wire, over the ranks of a node. " + OTHER_NODES,
    labels=(*NODE_LABELS, "axis", "op"),
)
COLLECTIVE_WAIT = Metric(
    name="collective.wait",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Time that ranks of a node stood still because others of it joined a collective late. " + OTHER_NODES,
    labels=(*NODE_LABELS, "axis", "op"),
)
BUS_BANDWIDTH = Metric(
    name="collective.bus.bandwidth",
    type=Type.GAUGE,
    unit=Unit.BYTES_PER_SECOND,
    help="Bus bandwidth of the latest collectives, from their transfer times. " + OTHER_NODES,
    labels=(*NODE_LABELS, "axis", "op"),
)

MEMORY = Metric(
    name="memory",
    type=Type.GAUGE,
    unit=Unit.BYTES,
    help="Memory after the latest step, by measure: of the process on a CPU, of torch's allocator on a GPU.",
    labels=(*RANK_LABELS, "measure"),
)

GPU_POWER = Metric(
    name="gpu.power", type=Type.GAUGE, unit=Unit.WATTS, help="Power the GPU draws, by NVML.", labels=GPU_LABELS
)
GPU_CLOCK = Metric(
    name="gpu.sm.clock", type=Type.GAUGE, unit=Unit.HERTZ, help="Clock of the GPU's SMs, by NVML.", labels=GPU_LABELS
)
GPU_TEMPERATURE = Metric(
    name="gpu.temperature",
    type=Type.GAUGE,
    unit=Unit.CELSIUS,
    help="Temperature of the GPU, by NVML.",
    labels=GPU_LABELS,
)
GPU_THROTTLED = Metric(
    name="gpu.throttled",
    type=Type.GAUGE,
    help="1 while NVML says that the GPU is slowed down for this reason; reasons never seen are left out.",
    labels=(*GPU_LABELS, "reason"),
)
GPU_ECC = Metric(
    name="gpu.ecc.errors",
    type=Type.COUNTER,
    help="ECC errors of the GPU by NVML, corrected or uncorrected, since the driver was loaded.",
    labels=(*GPU_LABELS, "kind"),
)
GPU_XID = Metric(
    name="gpu.xid.errors",
    type=Type.COUNTER,
    help="XID errors of the GPU by number, since the attempt began.",
    labels=(*GPU_LABELS, "xid"),
)
GPU_NVLINK = Metric(
    name="gpu.nvlink.errors",
    type=Type.COUNTER,
    help="Errors of the GPU's NVLinks (CRC, replay, recovery) by NVML.",
    labels=GPU_LABELS,
)

FAULTS = Metric(
    name="faults",
    type=Type.COUNTER,
    help="Fault events by kind, since the attempt began; kinds that never came are left out.",
    labels=(*RANK_LABELS, "kind"),
)
CHECKPOINTS = Metric(
    name="checkpoints", type=Type.COUNTER, help="Checkpoints finished since the attempt began.", labels=NODE_LABELS
)
CHECKPOINT_AGE = Metric(
    name="checkpoint.age",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Time since the last checkpoint was finished, or since the attempt began where there is none yet.",
    labels=NODE_LABELS,
)
JOB_TIME = Metric(
    name="job.time",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Time of the job over all attempts by what it went to: productive, lost, startup, restart, and so on.",
    labels=(*NODE_LABELS, "part"),
)
GOODPUT = Metric(
    name="goodput",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Productive time of the job over all its time, restarts and lost steps included.",
    labels=NODE_LABELS,
)

RANKS = Metric(
    name="ranks",
    type=Type.GAUGE,
    help="Ranks of the node by state: alive, ended, or gone (their process is there no more, without an end).",
    labels=(*NODE_LABELS, "state"),
)
DATA_AGE = Metric(
    name="data.age",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Time since the rank's last record: a rank that hangs, or is gone, grows old.",
)
OWN_TIME = Metric(
    name="recorder.time",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="CPU time that the recorder itself spent in training steps, by its own meter, over the ranks of a node.",
    labels=NODE_LABELS,
)
RECORDS = Metric(
    name="recorder.records",
    type=Type.COUNTER,
    help="Records written since the attempt began, over the ranks of a node.",
    labels=NODE_LABELS,
)
DROPPED = Metric(
    name="recorder.dropped",
    type=Type.COUNTER,
    help="Records lost since the attempt began, over the ranks of a node: a full disk, a used-up budget.",
    labels=NODE_LABELS,
)
AGENT_TIME = Metric(
    name="agent.time",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="CPU time of the node's agent.",
    labels=NODE_LABELS,
)
AGENT_LAG = Metric(
    name="agent.lag",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="How old the numbers of this exposition are: since the agent last looked at its ranks.",
    labels=NODE_LABELS,
)
MODULE_TIME = Metric(
    name="module.time",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Time in the forward of modules at the depth that is recorded.",
    labels=(*RANK_LABELS, "module"),
    level=2,
)
ACTION_TIME = Metric(
    name="pipeline.action.time",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Time in a stage's pipeline actions: F, I, W, B.",
    labels=(*RANK_LABELS, "stage", "action"),
    level=2,
)

CATALOGUE = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""In the order of this file."""

MAX_SERIES_PER_RANK = {1: 40, 2: 150}
"""Level -> how many series a rank may have at it."""

BY_PROMETHEUS = {metric.prometheus: metric for metric in CATALOGUE}
