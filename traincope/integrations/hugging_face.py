"""Callback for the Trainer of Hugging Face's transformers."""

import os
from typing import Any

from torch.compiler import is_compiling
from transformers import TrainerCallback, __version__

import traincope
from traincope.integrations.model_rates import configured_rates
from traincope.integrations.recording import Recording
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run, active_run

SUMMARY = "train_runtime"
"""Name in the values that the Trainer logs once, after its last step."""
ACCELERATE_PARALLELISM = "ACCELERATE_USE_PARALLELISM_CONFIG"
"""Variable by which `accelerate launch` sets the parallelism."""
PACKED = ("position_ids", "cu_seq_lens_q")
"""Inputs of a model by which a row may hold several documents, as those of DataCollatorWithFlattening."""


def _tensor_parallel_size(model: Any, args: Any) -> int | None:
    """The number of ranks that share their tokens, in the order of `Trainer.get_tp_size`; None if unknown."""
    of_model = getattr(model, "_tp_size", None)
    if of_model is not None:
        return int(of_model)
    deepspeed = getattr(args, "hf_deepspeed_config", None)
    if deepspeed is not None:
        return int(deepspeed.config.get("tensor_parallel", {}).get("autotp_size", 1))
    parallelism = getattr(args, "parallelism_config", None)
    if parallelism is None and ACCELERATE_PARALLELISM in os.environ:
        return None  # only the accelerator knows, and callbacks do not receive it
    return getattr(parallelism, "tp_size", 1)


class _TokenCount:
    """Hook that logs the tokens of each forward, and their squared lengths if each row is one sequence.

    In a copy or a pickle of the model it logs nothing.
    """

    def __init__(self, same_tokens: int | None = None) -> None:
        """`same_tokens`: number of ranks that share the tokens; None: log nothing."""
        self._same_tokens = same_tokens
        self._log = guard(self._log_tokens)

    def __call__(self, module: Any, _args: Any, inputs: dict[str, Any]) -> None:
        if self._same_tokens and not is_compiling() and module.training and module.main_input_name in inputs:
            self._log(inputs[module.main_input_name], inputs)

    def __reduce__(self) -> tuple[type["_TokenCount"], tuple[()]]:
        return _TokenCount, ()

    def _log_tokens(self, rows: Any, inputs: dict[str, Any]) -> None:
        tokens = rows.numel() / (self._same_tokens or 1)
        traincope.log(step_tokens=tokens)
        if all(inputs.get(name) is None for name in PACKED):
            traincope.log(step_formula_squared_lengths=tokens * rows.shape[-1])


def _describe_rates(model: Any, args: Any) -> None:
    """Describe the FLOPs per token by the model's configuration, for a run whose kernels cannot be counted."""
    rates, run = configured_rates(model), active_run()
    if rates is not None and run is not None:
        dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else str(model.dtype).removeprefix("torch.")
        run.describe(
            formula_flops_per_token=rates.token,
            formula_flops_per_squared_length=rates.squared_length,
            formula_flops_per_routed_token=rates.routed_token,
            formula_flops_dtype=dtype,
        )


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
        guard(_describe_rates)(model, args)

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        values = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        if SUMMARY not in values:
            traincope.log(**values)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._forget()
        self._recording.end()

    def _watch(self, model: Any, args: Any) -> None:
        self._forget()
        self._count = model.register_forward_pre_hook(_TokenCount(_tensor_parallel_size(model, args)), with_kwargs=True)

    def _forget(self) -> None:
        if self._count is not None:
            self._count.remove()
            self._count = None
