"""Ways to the trackers of a training: the open runs of wandb and MLflow, and the loggers of Lightning."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

Send = Callable[[dict[str, float], int], object]
"""Function that passes values to a tracker, given the number of steps after which they were measured."""

WANDB_STEP = "traincope/step"
"""Axis of the values in wandb."""
LOGGERS = ("WandbLogger", "MLFlowLogger", "TensorBoardLogger")
"""Lightning's loggers that may be called from another thread."""


def open_trackers() -> list[Send]:
    """Functions that send to the runs of wandb and MLflow that are open in this process."""
    return [send for send in (_wandb(sys.modules.get("wandb")), _mlflow(sys.modules.get("mlflow"))) if send is not None]


def trackers_of_lightning(loggers: Sequence[Any]) -> list[Send]:
    """Functions that send to Lightning's loggers of wandb, MLflow and TensorBoard."""
    return [_lightning(logger) for logger in loggers if type(logger).__name__ in LOGGERS]


def _wandb(module: Any) -> Send | None:
    """Values go into the row that is open. A row of their own would take a step number from the training."""
    run = getattr(module, "run", None)
    if run is None:
        return None
    known: set[str] = set()

    def send(values: dict[str, float], step: int) -> None:
        for name in values.keys() - known:
            run.define_metric(name, step_metric=WANDB_STEP)
            known.add(name)
        run.log({**values, WANDB_STEP: step}, commit=False)

    return send


def _mlflow(module: Any) -> Send | None:
    """The run is passed by its id: MLflow's active run is another one in another thread."""
    active = None if module is None else module.active_run()
    if active is None:
        return None
    return lambda values, step: module.log_metrics(values, step=step, run_id=active.info.run_id)


def _lightning(logger: Any) -> Send:
    """Lightning counts the steps before the one that it logs."""
    return lambda values, step: logger.log_metrics(values, step - 1)
