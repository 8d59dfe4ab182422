"""Callback for Lightning's Trainer."""

from collections.abc import Callable, Mapping
from typing import Any

try:
    from lightning.pytorch import Callback, __version__
except ModuleNotFoundError:  # the same classes under the package's other name
    from pytorch_lightning import Callback, __version__

import traincope
from traincope.integrations.recording import Recording
from traincope.integrations.trackers import Send
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run

FIT = "fit"
TRACKERS = ("WandbLogger", "MLFlowLogger", "TensorBoardLogger")
"""Loggers that may be called from another thread."""


def input_ids(batch: Any) -> int | None:
    """Number of tokens of a batch that has `input_ids`."""
    return batch["input_ids"].numel() if isinstance(batch, Mapping) and "input_ids" in batch else None


def _sender(logger: Any) -> Send:
    """Lightning counts the steps before the one that it logs."""
    return lambda values, step: logger.log_metrics(values, step - 1)


class LightningCallback(Callback):  # type: ignore[misc]
    """Records `fit`, with its tokens, its loss and the values that `self.log` receives.

    >>> trainer = Trainer(..., callbacks=[LightningCallback()])
    """

    def __init__(self, run: Run | None = None, *, tokens: Callable[[Any], int | None] = input_ids) -> None:
        """`run`: `traincope.run(...)` with settings. It is not used if another run records already.

        `tokens`: number of tokens of a batch of this rank; None if unknown.
        """
        self._recording = Recording(run)
        self._tokens = tokens
        self._values: dict[str, Any] = {}
        """The latest values, kept alive so that a new value has other memory.

        Lightning keeps those of earlier steps among the new ones.
        """

    def setup(self, _trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == FIT:
            self._recording.begin({"trainer": f"lightning {__version__}", "model": type(pl_module).__name__})

    def on_train_start(self, trainer: Any, _pl_module: Any) -> None:
        guard(self._train)(trainer)

    def on_train_batch_end(self, trainer: Any, _pl_module: Any, outputs: Any, batch: Any, _batch_idx: int) -> None:
        guard(self._log)(trainer, outputs, batch)

    def on_exception(self, _trainer: Any, _pl_module: Any, exception: BaseException) -> None:
        self._recording.end(exception)

    def teardown(self, _trainer: Any, _pl_module: Any, stage: str) -> None:
        if stage == FIT:
            self._recording.end()

    def _train(self, trainer: Any) -> None:
        loggers = [logger for logger in trainer.loggers if type(logger).__name__ in TRACKERS]
        # The axis of Lightning's loggers. `global_step` counts the steps of each optimizer.
        steps = trainer.fit_loop.epoch_loop._batches_that_stepped
        self._recording.train([_sender(logger) for logger in loggers], step=steps)

    def _log(self, trainer: Any, outputs: Any, batch: Any) -> None:
        tokens = self._tokens(batch)
        if tokens is not None:
            traincope.log(step_tokens=tokens)
        if isinstance(outputs, Mapping) and "loss" in outputs:
            # Lightning divides the loss by the number of batches that it accumulates.
            traincope.log(loss=outputs["loss"] * trainer.accumulate_grad_batches)
        before, self._values = self._values, dict(trainer.callback_metrics)
        traincope.log(**{name: value for name, value in self._values.items() if _is_new(value, before.get(name))})


def _is_new(value: Any, before: Any) -> bool:
    """Return whether a value has memory of its own. Lightning makes a new view of the same value at each look."""
    return before is None or value.data_ptr() != before.data_ptr()
