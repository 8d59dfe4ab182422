"""Values that `plan` reads in a configuration of `traincope train`. Reading it needs the extra `train`."""

from pathlib import Path

from traincope.engine.config.load import load_config
from traincope.engine.model.allocation import allocated_model
from traincope.engine.model.shape import planned_layout, planned_recompute, transformer
from traincope.plan.allocator.modules import Model
from traincope.plan.check.training_plan import TrainingPlan


def read_own_plan(path: Path) -> TrainingPlan:
    """Read a configuration. `traincope train` always records, so it names slow ranks.

    Raises ConfigError if it is unusable.
    """
    config = load_config(path)
    experts, checkpoint, shape = config.experts, config.checkpoint, transformer(config)
    fixed = checkpoint is not None and checkpoint.cadence == "fixed"
    return TrainingPlan(
        framework="traincope",
        shape=shape,
        layout=planned_layout(config),
        tp=config.parallel.tp,
        pp=config.parallel.pp,
        vocabulary=shape.vocabulary,
        head_dim=shape.query_width // shape.heads,
        recompute=planned_recompute(config),
        clips=config.optimizer.clip_norm is not None,
        optimizer_states="fp32",
        steps=config.train.steps,
        checkpoint_steps=checkpoint.every if checkpoint is not None and fixed else None,
        saves=checkpoint is not None,
        blocking_saves=None if checkpoint is None else not checkpoint.asynchronous,
        workers=config.data.workers,
        experts=experts is not None,
        capacity_factor=None if experts is None else experts.capacity_factor,
        balance=None if experts is None else experts.balance,
        watches_stragglers=True,
    )


def read_own_model(path: Path) -> Model:
    """Read a configuration's sizes for the peak of memory. Raises ConfigError if it is unusable or has no formula."""
    return allocated_model(load_config(path))
