"""Declarations of all metrics that leave a running job: name, type, unit, help, labels.

Prometheus, OTLP, dashboards, rules and the table in docs/reference/METRICS.md are made from `CATALOGUE`.
"""

from traincope.metrics.metric import GPU_LABELS, LINK_LABELS, NODE_LABELS, RANK_LABELS, Fold, Metric, Type, Unit
from traincope.store.side_tables.rows import STEP_BUCKETS

OTHER_NODES = "While a job runs, wait for other nodes' ranks counts as transfer, unless witness copies show it."
"""An agent sees only the ranks of its node."""
COLLECTIVE_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

RUN_INFO = Metric(
    name="run",
    type=Type.INFO,
    help="World size, mesh, attempt, versions, workflow and role of the run.",
    labels=(*NODE_LABELS, "world_size", "mesh", "attempt", "torch", "traincope", "workflow", "role"),
)
RANK_INFO = Metric(
    name="rank",
    type=Type.INFO,
    help="Mesh coordinates of the rank as axis=index pairs, its device and the GPU's UUID, and node, job, user and pod "
    "as the scheduler names them. Series of other exporters join by these labels.",
    labels=(*RANK_LABELS, "coords", "device", "gpu", "node", "job_id", "user", "namespace", "pod"),
)

STEPS = Metric(
    name="steps",
    type=Type.COUNTER,
    help="Training steps finished since the attempt began.",
    fold=Fold.SUM,
)
LAST_STEP = Metric(name="step.last", type=Type.GAUGE, help="Number of the last finished training step.")
STEP_DURATION = Metric(
    name="step.duration",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Wall time of the last finished training step.",
)
STEP_TIMES = Metric(
    name="step.time",
    type=Type.HISTOGRAM,
    unit=Unit.SECONDS,
    help="Wall times of steps after the warm-up step, over the ranks of a node. Exemplars name a step and its rank.",
    labels=NODE_LABELS,
    buckets=STEP_BUCKETS,
)
LEDGER = Metric(
    name="ledger",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Wall time of training steps by ledger term and, if the term has one, axis (other: unnamed groups). "
    "Terms without time have no series. " + OTHER_NODES,
    labels=(*RANK_LABELS, "term", "axis"),
    fold=Fold.SUM,
)
LEDGER_CLOCK = Metric(
    name="ledger.clock",
    type=Type.INFO,
    help="Clock of the ledger of the node's latest steps with detail: device by marks on the compute streams of the "
    "GPUs, otherwise host.",
    labels=(*NODE_LABELS, "clock"),
)
RUN_AHEAD = Metric(
    name="run_ahead",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Run-ahead of the rank's host over its GPU in the latest step recorded in detail: the median over the begins "
    "of the step and its phases. Only on the device's clock.",
    fold=Fold.MIN,
)
WALL = Metric(
    name="step.wall",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Wall time of the training steps in the ledger: those recorded in detail, except the warm-up step.",
    fold=Fold.SUM,
)
MFU = Metric(
    name="mfu",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Model FLOPs utilization of the node's ranks in the latest steps. Causal attention counts half.",
    labels=NODE_LABELS,
)
MFU_PAPER = Metric(
    name="mfu.paper",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Model FLOPs utilization of the node's ranks in the latest steps. Causal attention counts in full, as in many "
    "papers.",
    labels=NODE_LABELS,
)
HFU = Metric(
    name="hfu",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Hardware FLOPs utilization of the node's ranks in the latest steps: all executed FLOPs.",
    labels=NODE_LABELS,
)
TOKENS = Metric(
    name="tokens",
    type=Type.COUNTER,
    help="Tokens on which the node's ranks trained: their share of the job's tokens, if declared or logged.",
    labels=NODE_LABELS,
)
BUBBLE = Metric(
    name="bubble",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Pipeline bubble of a stage in the latest steps: schedule, imbalance and jitter, as a share of step time.",
    labels=(*NODE_LABELS, "stage"),
)
BUBBLE_PART = Metric(
    name="bubble.part",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Part of a stage's pipeline bubble: schedule, imbalance or jitter. Parts are differences and may be negative.",
    labels=(*NODE_LABELS, "stage", "part"),
)
BUBBLE_THEORY = Metric(
    name="bubble.theory",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Pipeline bubble that theory expects of the recorded schedule, as a share of step time.",
    labels=NODE_LABELS,
)
STRAGGLER_WAIT = Metric(
    name="straggler.wait",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Time that ranks of this node waited because this rank joined a collective last.",
)
LOGGED = Metric(
    name="logged",
    type=Type.GAUGE,
    help="Last value of run.log() by name, from the node's lowest rank that logs it. Only the first names have series.",
    labels=(*NODE_LABELS, "name"),
)

COLLECTIVE_TIMES = Metric(
    name="collective.duration",
    type=Type.HISTOGRAM,
    unit=Unit.SECONDS,
    help="Durations of collectives whose completion was seen, from the call to completion, over the ranks of a node.",
    labels=(*NODE_LABELS, "axis", "op"),
    buckets=COLLECTIVE_BUCKETS,
    fold=Fold.OMIT,
)
COLLECTIVE_BYTES = Metric(
    name="collective.size",
    type=Type.COUNTER,
    unit=Unit.BYTES,
    help="Bytes of collectives, counted as in nccl-tests, over the ranks of a node.",
    labels=(*NODE_LABELS, "axis", "op"),
)
COLLECTIVE_TRANSFER = Metric(
    name="collective.transfer",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Transfer time of collectives, over the ranks of a node. " + OTHER_NODES,
    labels=(*NODE_LABELS, "axis", "op"),
)
COLLECTIVE_WAIT = Metric(
    name="collective.wait",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Exposed wait in collectives: time that ranks of a node waited for others to join. " + OTHER_NODES,
    labels=(*NODE_LABELS, "axis", "op"),
)
AMBIGUOUS_WAIT = Metric(
    name="ambiguous.wait",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Part of exposed transfer that may contain wait, by the reason why the records cannot separate them.",
    labels=(*NODE_LABELS, "axis", "reason"),
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
    help=(
        "Memory after the latest step, by measure: of the process on a CPU, of torch's allocator on a GPU, and of "
        "parameters, gradients, optimizer state and communication buffers."
    ),
    labels=(*RANK_LABELS, "measure"),
    fold=Fold.MAX,
)

GPU_POWER = Metric(
    name="gpu.power",
    type=Type.GAUGE,
    unit=Unit.WATTS,
    help="Power draw of the GPU, from NVML.",
    labels=GPU_LABELS,
    fold=Fold.SUM,
)
GPU_ENERGY = Metric(
    name="gpu.energy",
    type=Type.COUNTER,
    unit=Unit.JOULES,
    # A sum over a changing set of GPUs is not a counter, so each GPU keeps its series.
    help="Energy of the GPU from NVML, since the driver was loaded. Not in MIG mode.",
    labels=(*NODE_LABELS, "gpu"),
)
GPU_CLOCK = Metric(
    name="gpu.sm.clock",
    type=Type.GAUGE,
    unit=Unit.HERTZ,
    help="Clock of the GPU's SMs, from NVML.",
    labels=GPU_LABELS,
    fold=Fold.MIN,
)
GPU_TEMPERATURE = Metric(
    name="gpu.temperature",
    type=Type.GAUGE,
    unit=Unit.CELSIUS,
    help="Temperature of the GPU, from NVML.",
    labels=GPU_LABELS,
    fold=Fold.MAX,
)
GPU_THROTTLED = Metric(
    name="gpu.throttled",
    type=Type.GAUGE,
    help="1 while NVML reports that the GPU is throttled for this reason, otherwise 0. "
    "Only reasons seen before have series.",
    labels=(*GPU_LABELS, "reason"),
)
GPU_ECC = Metric(
    name="gpu.ecc.errors",
    type=Type.COUNTER,
    help="ECC errors of the GPU from NVML, corrected or uncorrected, since the driver was loaded.",
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
    help="Errors of the GPU's NVLinks (CRC, replay, recovery) from NVML.",
    labels=GPU_LABELS,
)
LINK_TRAFFIC = Metric(
    name="link.traffic",
    type=Type.COUNTER,
    unit=Unit.BYTES,
    help="Bytes that the host sent and received through a port of its network, by the kernel, since an unknown time.",
    labels=(*LINK_LABELS, "direction"),
)
LINK_ERRORS = Metric(
    name="link.errors",
    type=Type.COUNTER,
    help="Errors of a port of the host's network or of a card's slot, by the kernel's name of the count, since the "
    "agent began. Port TCP is all connections of the host. Only counts that grew have series.",
    labels=(*LINK_LABELS, "kind"),
)
LINK_UP = Metric(
    name="link.up",
    type=Type.GAUGE,
    help="1 while a port of the host's network that was up before has its link, otherwise 0.",
    labels=LINK_LABELS,
)
LINK_SPEED = Metric(
    name="link.speed",
    type=Type.GAUGE,
    unit=Unit.BYTES_PER_SECOND,
    help="Speed of a port's link, in one direction.",
    labels=LINK_LABELS,
)
SLOT_WIDTH = Metric(
    name="slot.width",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Lanes of a card's link to the bus (PCIe), relative to those that the card and the port above it can have. "
    "Only slots that were below 1 have series.",
    labels=(*LINK_LABELS, "holds"),
)

FAULTS = Metric(
    name="faults",
    type=Type.COUNTER,
    help="Faults by kind since the attempt began. Only kinds that occurred have series.",
    labels=(*RANK_LABELS, "kind"),
)
CHECKPOINTS = Metric(
    name="checkpoints", type=Type.COUNTER, help="Checkpoints finished since the attempt began.", labels=NODE_LABELS
)
CHECKPOINT_AGE = Metric(
    name="checkpoint.age",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Time since the last finished checkpoint; before the first one, time since the attempt began.",
    labels=NODE_LABELS,
)
JOB_TIME = Metric(
    name="job.time",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Time of the job over all attempts, by part: productive, skipped, rolled_back, lost, startup, restart and "
    "others.",
    labels=(*NODE_LABELS, "part"),
)
GOODPUT = Metric(
    name="goodput",
    type=Type.GAUGE,
    unit=Unit.RATIO,
    help="Goodput: productive time of the job / elapsed time of all attempts.",
    labels=NODE_LABELS,
)

INTERRUPTIONS = Metric(
    name="job.interruptions",
    type=Type.GAUGE,
    help="Attempts that did not end well, by cause.",
    labels=(*NODE_LABELS, "cause"),
)
MTBF = Metric(
    name="job.mtbf",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Mean running time between interruptions: estimate, and low and high of its 95 % interval. Without an "
    "interruption only low.",
    labels=(*NODE_LABELS, "bound"),
)
BADPUT = Metric(
    name="job.badput",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Time of the job that was not productive because of an interruption: restart or lost, by its cause.",
    labels=(*NODE_LABELS, "part", "cause"),
)

RANKS = Metric(
    name="ranks",
    type=Type.GAUGE,
    help="Ranks of the node by state: alive, ended, or gone (the process does not run and recorded no end).",
    labels=(*NODE_LABELS, "state"),
)
DATA_AGE = Metric(
    name="data.age",
    type=Type.GAUGE,
    unit=Unit.SECONDS,
    help="Time since the rank's last event. It grows if a rank hangs or is gone.",
)
OWN_TIME = Metric(
    name="recorder.time",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="CPU time of the recorder in training steps, by its own meter, over the ranks of a node.",
    labels=NODE_LABELS,
)
RECORDS = Metric(
    name="recorder.records",
    type=Type.COUNTER,
    help="Events written since the attempt began, over the ranks of a node.",
    labels=NODE_LABELS,
)
DROPPED = Metric(
    name="recorder.dropped",
    type=Type.COUNTER,
    help="Dropped events since the attempt began, over the ranks of a node. "
    "Causes: a full disk, an exhausted disk budget.",
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
    help="Age of these samples: time since the agent last looked at its ranks.",
    labels=NODE_LABELS,
)
MODULE_TIME = Metric(
    name="module.time",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Time in the forward of modules at the recorded depth.",
    labels=(*RANK_LABELS, "module"),
    level=2,
    fold=Fold.SUM,
)
ACTION_TIME = Metric(
    name="pipeline.action.time",
    type=Type.COUNTER,
    unit=Unit.SECONDS,
    help="Time in a stage's pipeline actions: F, B, I, W.",
    labels=(*RANK_LABELS, "stage", "action"),
    level=2,
    fold=Fold.OMIT,
)

CATALOGUE = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All metrics, in the order of this file."""

MAX_FOLDED_PER_RANK = 10
"""Maximum number of series per rank by default, with two of its kinds of faults, XIDs and reasons of throttling."""
MAX_SERIES_PER_RANK = {1: 40, 2: 150}
"""Level -> maximum number of series per rank, if every rank's series are exported."""

BY_PROMETHEUS = {metric.prometheus: metric for metric in CATALOGUE}
