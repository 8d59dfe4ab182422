"""Callback for Lightning's Trainer."""

from collections.abc import Callable, Mapping
from typing import Any

try:
    from lightning.pytorch import Callback, __version__
except ModuleNotFoundError:  # the same classes under the package's other name
    from pytorch_lightning import Callback, __version__

import traincope
from traincope.integrations.training.open_trackers import trackers_of_lightning
from traincope.integrations.training.recording import NewValues, Recording
from traincope.integrations.training.tokens import input_ids
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run


class LightningCallback(Callback):  # type: ignore[misc]
    """Records `fit`, with its tokens, its loss and the values that `self.log` receives.

    >>> trainer = Trainer(..., callbacks=[LightningCallback()])
    """

    def __init__(self, run: Run | None = None, *, tokens: Callable[[Any], int | None] = input_ids) -> None:
        """`run`: `traincope.run(...)` with settings. It is not used if another run records already.
        `tokens`: number of tokens of a batch of this rank; None if unknown.
        """
        self._recording, self._tokens, self._new_values = Recording(run), tokens, NewValues()

    def setup(self, _trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._recording.begin({"trainer": f"lightning {__version__}", "model": type(pl_module).__name__})

    @guard
    def on_train_start(self, trainer: Any, _pl_module: Any) -> None:
        # The axis of Lightning's loggers. `global_step` counts the steps of each optimizer.
        trackers = trackers_of_lightning(trainer.loggers)
        self._recording.train(trackers, step=trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_train_batch_end(self, trainer: Any, _pl_module: Any, outputs: Any, batch: Any, _batch_idx: int) -> None:
        guard(self._log)(trainer, outputs, batch)

    def on_exception(self, _trainer: Any, _pl_module: Any, exception: BaseException) -> None:
        self._recording.end(exception)

    def teardown(self, _trainer: Any, _pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._recording.end()

    def _log(self, trainer: Any, outputs: Any, batch: Any) -> None:
        if (tokens := self._tokens(batch)) is not None:
            traincope.log(step_tokens=tokens)
        if isinstance(outputs, Mapping) and "loss" in outputs:
            # Lightning divides the loss by the number of batches that it accumulates.
            traincope.log(loss=outputs["loss"] * trainer.accumulate_grad_batches)
        traincope.log(**self._new_values.among(trainer.callback_metrics))
