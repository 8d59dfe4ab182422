"""A training plan as the rules see it, whichever framework it is written for."""

from dataclasses import dataclass

from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A plan. None: the plan does not say, and rules that need the value are silent."""

    framework: str
    open_because: str = ""
    """Why the model or the layout is not known although the plan gives something of it, and the remedy."""
    unmodelled: tuple[str, ...] = ()
    """Settings that change memory or speed, and have no formula here."""
    shape: Transformer | None = None
    layout: Layout | None = None
    """Layout and batch."""
    tp: int | None = None
    pp: int | None = None
    vocabulary: int | None = None
    head_dim: int | None = None
    recompute: Recompute | None = None
    early_stop: bool = True
    """As in `ActivationPolicy`; so is `ordered`."""
    ordered: bool = False
    clips: bool | None = None
    """Gradients are clipped."""
    optimizer_states: str | None = None
    """Type of the optimizer's mean squared gradients, by the names of `precision.DTYPES`."""
    steps: int | None = None
    checkpoint_steps: int | None = None
    """Steps from one checkpoint to the next; None also if there are none."""
    saves: bool | None = None
    """The training saves checkpoints."""
    blocking_saves: bool | None = None
    """The training waits until a checkpoint is written."""
    workers: int | None = None
    """Processes that prepare batches."""
    experts: bool | None = None
    capacity_factor: float | None = None
    balance: float | None = None
    """Weight of the auxiliary loss that spreads tokens over experts."""
    watches_stragglers: bool | None = None
