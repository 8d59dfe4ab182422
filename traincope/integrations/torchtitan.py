"""Metrics processor for torchtitan's Trainer."""

from importlib.metadata import version
from typing import Any

import traincope
from traincope.integrations.training.recording import Recording
from traincope.integrations.training.stand_in import StandIn
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run


class TorchTitanMetrics(StandIn):
    """Records a Trainer's training from here to its end, with its tokens and what torchtitan logs.

    >>> trainer = Trainer(config)
    >>> trainer.metrics_processor = TorchTitanMetrics(trainer)
    >>> trainer.train()

    Ranks that share tokens (tensor, context and pipeline parallelism) count them once.
    """

    __slots__ = ("_ranks_per_token", "_recording", "_tokens")

    def __init__(self, trainer: Any, run: Run | None = None) -> None:
        """`run`: `traincope.run(...)` with settings. It is not used if another run records already."""
        super().__init__(trainer.metrics_processor)  # the Trainer counts in it
        self._tokens = 0
        self._ranks_per_token = trainer.parallel_dims.non_data_parallel_size
        self._recording = Recording(run)
        names = {"trainer": f"torchtitan {version('torchtitan')}", "model": type(trainer.model_parts[0]).__name__}
        self._recording.begin(names)
        self._recording.train(step=trainer.step)

    def should_log(self, step: int) -> bool:
        """torchtitan asks this after each step."""
        guard(self._log_tokens)()
        return bool(self._original.should_log(step))

    def log(self, step: int, *values: Any, **named: Any) -> None:
        guard(self._log)(values, named.get("extra_metrics") or {})
        self._original.log(step, *values, **named)
        self._tokens = self._original.ntokens_since_last_log

    def close(self) -> None:
        self._recording.end()
        self._original.close()

    def _log_tokens(self) -> None:
        before, self._tokens = self._tokens, self._original.ntokens_since_last_log
        traincope.log(step_tokens=(self._tokens - before) / self._ranks_per_token)

    def _log(self, values: tuple[Any, ...], extra: dict[str, Any]) -> None:
        traincope.log(**dict(zip(("loss", "largest_loss", "grad_norm"), values, strict=False)), **extra)
