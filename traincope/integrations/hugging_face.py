"""Callback for the Trainer of Hugging Face's transformers."""

from typing import Any

from transformers import TrainerCallback, __version__

from traincope.integrations.training.model_rates import describe_rates
from traincope.integrations.training.recording import Recording
from traincope.integrations.training.tokens import count_tokens
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run

SUMMARY = "train_runtime"
"""Name in the values that the Trainer logs once, after its last step."""


class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]
    """Records the training of a Trainer, with its tokens and the values that it logs.

    >>> trainer = Trainer(..., callbacks=[HuggingFaceCallback()])

    Tokens are the elements of the model's main input, padding included. A compiled model is not asked for them.

    If the recorder cannot count the FLOPs, they follow from these tokens and the model's configuration.
    """

    def __init__(self, run: Run | None = None) -> None:
        """`run`: `traincope.run(...)` with settings. It is not used if another run records already."""
        self._recording = Recording(run)
        self._count: Any = None

    def on_train_begin(self, args: Any, state: Any, _control: Any, *, model: Any, **_: Any) -> None:
        self._recording.begin({"trainer": f"transformers {__version__}", "model": type(model).__name__})
        self._recording.train(step=state.global_step)
        guard(self._watch)(model, args)
        guard(describe_rates)(model, args)

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        if SUMMARY not in logs:
            self._recording.log(logs)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._forget()
        self._recording.end()

    def _watch(self, model: Any, args: Any) -> None:
        self._forget()
        self._count = count_tokens(model, args)

    def _forget(self) -> None:
        if self._count is not None:
            self._count.remove()
            self._count = None
