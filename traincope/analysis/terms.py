"""The ledger's terms, in the order every table and picture shows them.

wall = forward + backward + recompute + optimizer + sum over axes of (exposed_transfer[axis] +
exposed_wait[axis]) + bubble.schedule + bubble.imbalance + bubble.jitter + exposed_memory +
data_wait + checkpoint_stall + gc + compile + sync + launch_gap + unattributed

Evaluation is a regime of its own: it is cut out of the wall time, and no term.
"""

from traincope.events import Phase
from traincope.topology import axis_order

PHASE_TERMS = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.RECOMPUTE: "recompute",
    Phase.OPTIMIZER: "optimizer",
    Phase.DATA_WAIT: "data_wait",
    Phase.CHECKPOINT_STALL: "checkpoint_stall",
    Phase.EVALUATION: "evaluation",
    Phase.GC: "gc",
    Phase.COMPILE: "compile",
    Phase.SYNC: "sync",
}
ACTION_TERMS = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}
"""Pipeline action -> term."""

COMPUTE = ("forward", "backward", "recompute", "optimizer")
BUBBLE = ("bubble.schedule", "bubble.imbalance", "bubble.jitter")
AFTER_BUBBLE = ("exposed_memory", "data_wait", "checkpoint_stall", "gc", "compile", "sync", "launch_gap")
UNATTRIBUTED = "unattributed"
EVALUATION = PHASE_TERMS[Phase.EVALUATION]
HOST_TERMS = (*PHASE_TERMS.values(), UNATTRIBUTED)
"""What a piece of the training thread's time can be, but for a stall."""
UNSEEN_BY_HOST = ("exposed_memory", "launch_gap")
"""Terms only a device's timeline can see; on a host they are None and their time is unattributed."""


def exposed_transfer(axis: str) -> str:
    return f"exposed_transfer[{axis}]"


def exposed_wait(axis: str) -> str:
    return f"exposed_wait[{axis}]"


def term_order(axes: set[str], *, pipeline: bool) -> tuple[str, ...]:
    """All terms of a run that communicates on `axes`; bubble terms only where there is a pipeline."""
    ordered = sorted(axes, key=axis_order)
    exposed = [term for axis in ordered for term in (exposed_transfer(axis), exposed_wait(axis))]
    return (*COMPUTE, *exposed, *(BUBBLE if pipeline else ()), *AFTER_BUBBLE, UNATTRIBUTED)
