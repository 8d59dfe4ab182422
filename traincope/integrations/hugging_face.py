"""Callback for the Trainer of Hugging Face's transformers."""

from typing import Any

from torch.compiler import is_compiling
from transformers import TrainerCallback, __version__

import traincope
from traincope.integrations.recording import Recording
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run

SUMMARY = "train_runtime"
"""Name in the values that the Trainer logs once, after its last step."""


class _TokenCount:
    """Hook that logs the tokens of each forward. In a copy or a pickle of the model it logs nothing."""

    def __init__(self, same_tokens: int | None = None) -> None:
        """`same_tokens`: number of ranks that share the tokens; None: log nothing."""
        self._same_tokens = same_tokens
        self._log = guard(self._log_tokens)

    def __call__(self, module: Any, _args: Any, inputs: dict[str, Any]) -> None:
        if self._same_tokens and not is_compiling() and module.training and module.main_input_name in inputs:
            self._log(inputs[module.main_input_name].numel() / self._same_tokens)

    def __reduce__(self) -> tuple[type["_TokenCount"], tuple[()]]:
        return _TokenCount, ()

    def _log_tokens(self, tokens: float) -> None:
        traincope.log(step_tokens=tokens)


class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]
    """Records the training of a Trainer, with its tokens and the values that it logs.

    >>> trainer = Trainer(..., callbacks=[HuggingFaceCallback()])

    Tokens are the elements of the model's main input, padding included. A compiled model is not asked for them.
    """

    def __init__(self, run: Run | None = None) -> None:
        """`run`: `traincope.run(...)` with settings. It is not used if another run records already."""
        self._recording = Recording(run)
        self._count: Any = None

    def on_train_begin(self, args: Any, state: Any, _control: Any, *, model: Any, **_: Any) -> None:
        self._recording.begin({"trainer": f"transformers {__version__}", "model": type(model).__name__})
        self._recording.train(step=state.global_step)
        guard(self._watch)(model, getattr(args, "parallelism_config", None))

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        values = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        if SUMMARY not in values:
            traincope.log(**values)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._forget()
        self._recording.end()

    def _watch(self, model: Any, parallelism: Any) -> None:
        self._forget()
        same_tokens = getattr(parallelism, "tp_size", 1)  # the ranks of a tensor-parallel group
        self._count = model.register_forward_pre_hook(_TokenCount(same_tokens), with_kwargs=True)

    def _forget(self) -> None:
        if self._count is not None:
            self._count.remove()
            self._count = None
