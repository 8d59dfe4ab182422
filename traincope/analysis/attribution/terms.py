"""Terms of the ledger, in the order that every table and picture uses.

wall = forward + backward + recompute + optimizer + other_compute + sum over axes of (exposed_transfer[axis] +
exposed_wait[axis]) + bubble.schedule + bubble.imbalance + bubble.jitter + exposed_memory +
data_wait + job_wait + objects + generate + reward + logprob + advantage + weight_sync + environment + sum over names of
span.NAME + checkpoint_stall + gc + compile + sync + launch_gap + kernel_wait + unattributed

Evaluation is not a term: it is excluded from the wall time of a step.
"""

from collections.abc import Iterable

from traincope.events import APART, Phase
from traincope.timeline import LedgerClock
from traincope.topology import axis_order

PHASE_TERMS = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.RECOMPUTE: "recompute",
    Phase.OPTIMIZER: "optimizer",
    Phase.DATA_WAIT: "data_wait",
    Phase.JOB_WAIT: "job_wait",
    Phase.OBJECTS: "objects",
    Phase.CHECKPOINT_STALL: "checkpoint_stall",
    Phase.EVALUATION: "evaluation",
    Phase.GC: "gc",
    Phase.COMPILE: "compile",
    Phase.SYNC: "sync",
    Phase.EXPOSED_MEMORY: "exposed_memory",
    Phase.LAUNCH_GAP: "launch_gap",
    Phase.KERNEL_WAIT: "kernel_wait",
    Phase.OTHER_COMPUTE: "other_compute",
}
APART_TERMS = tuple(name for name, phase in APART.items() if phase is not Phase.NAMED)
"""Terms of the parts of a step that are not training. They contain all that happens inside, also waits."""
NAMED_PREFIX = "span."
"""A part that the training names is a term with this prefix."""
PHASE_TERMS |= {APART[term]: term for term in APART_TERMS}
ACTION_TERMS = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}
"""Pipeline action -> term."""

OTHER_COMPUTE = PHASE_TERMS[Phase.OTHER_COMPUTE]
"""A GPU's compute of unknown phase. A host has none: its compute is in a phase or unattributed."""
JOB_WAIT = PHASE_TERMS[Phase.JOB_WAIT]
OBJECTS = PHASE_TERMS[Phase.OBJECTS]
ONLY_IF_RECORDED = frozenset({OTHER_COMPUTE, JOB_WAIT, OBJECTS, *APART_TERMS})
"""Terms that most runs lack. A run without such time does not list them."""
COMPUTE = ("forward", "backward", "recompute", "optimizer", OTHER_COMPUTE)
BUBBLE = ("bubble.schedule", "bubble.imbalance", "bubble.jitter")
AFTER_BUBBLE = (
    *APART_TERMS,
    *("exposed_memory", "data_wait", "job_wait", "objects", "checkpoint_stall", "gc", "compile", "sync"),
    *("launch_gap", "kernel_wait"),
)
EVERY_STEP = ("data_wait", "job_wait", "checkpoint_stall", "gc", *APART_TERMS)
"""Terms that light steps have too, as those of parts with names. Their other terms contain unrecorded communication."""
UNATTRIBUTED = "unattributed"
EVALUATION = PHASE_TERMS[Phase.EVALUATION]
HOST_TERMS = (*PHASE_TERMS.values(), UNATTRIBUTED)
"""Terms that a slice of the training thread can have if no stall owns it, without those of names."""
NOT_MEASURED = {
    LedgerClock.HOST: ("exposed_memory", "compile", "sync", "launch_gap", "kernel_wait"),
    LedgerClock.DEVICE: ("data_wait", "checkpoint_stall", "gc", "compile"),
}
"""Terms without a probe: None, never 0, unless the records contain such time. Their time is in `unattributed`, or in
`launch_gap` if a GPU measured it: a trace shows what a host did only if something names it.
"""


def is_part(term: str) -> bool:
    """Return whether the term is a part of a step that is not training."""
    return term in APART_TERMS or term.startswith(NAMED_PREFIX)


def exposed_transfer(axis: str) -> str:
    return f"exposed_transfer[{axis}]"


def exposed_wait(axis: str) -> str:
    return f"exposed_wait[{axis}]"


def term_order(axes: set[str], *, pipeline: bool, names: Iterable[str] = ()) -> tuple[str, ...]:
    """List all terms of a run that communicates on `axes`; bubble terms only with a pipeline.

    `names`: terms of parts that the training names.
    """
    ordered = sorted(axes, key=axis_order)
    exposed = [term for axis in ordered for term in (exposed_transfer(axis), exposed_wait(axis))]
    return (*COMPUTE, *exposed, *(BUBBLE if pipeline else ()), *AFTER_BUBBLE, *sorted(names), UNATTRIBUTED)
