"""Tokens of a batch, and of each forward of a model of transformers, with their squared lengths."""

import os
from collections.abc import Mapping
from typing import Any

from torch.compiler import is_compiling

import traincope
from traincope.record.instrumentation.guard import guard

ACCELERATE_PARALLELISM = "ACCELERATE_USE_PARALLELISM_CONFIG"
"""Variable by which `accelerate launch` sets the parallelism."""
PACKED = ("position_ids", "cu_seq_lens_q")
"""Inputs of a model by which a row may hold several documents, as those of DataCollatorWithFlattening."""


def input_ids(batch: Any) -> int | None:
    """Number of tokens of a batch that has `input_ids`."""
    return batch["input_ids"].numel() if isinstance(batch, Mapping) and "input_ids" in batch else None


class TokenCount:
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

    def __reduce__(self) -> tuple[type["TokenCount"], tuple[()]]:
        return TokenCount, ()

    def _log_tokens(self, rows: Any, inputs: dict[str, Any]) -> None:
        tokens = rows.numel() / (self._same_tokens or 1)
        traincope.log(step_tokens=tokens)
        if all(inputs.get(name) is None for name in PACKED):
            traincope.log(step_formula_squared_lengths=tokens * rows.shape[-1])


def count_tokens(model: Any, args: Any) -> Any:
    """Count the tokens of a model. `args`: the Trainer's arguments. Returns the handle that removes the hook."""
    return model.register_forward_pre_hook(TokenCount(_tensor_parallel_size(model, args)), with_kwargs=True)


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
