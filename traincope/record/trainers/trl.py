"""TRL: the contexts in which its trainers measure their own time."""

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches

MODULE = "trl.extras.profiling"
CLASS = "ProfilingContext"
TERMS = {
    "_prepare_inputs": "prepare_inputs",
    "transformers.generate": "generate",
    "transformers.generate_batch": "generate",
    "vLLM.generate": "generate",
    "sync_weights": "weight_sync",
    "_calculate_rewards": "reward",
    "_get_per_token_logps_and_entropies": "logprob",
}
"""Name of a context without its trainer's class -> the part. Of others nothing shows whether they contain training."""


def patch(module: ModuleType, patches: Patches, begin: Callable[..., Any], **_: Any) -> None:
    """Begin and end a part with each context of a trainer that trains. An evaluation is not part of a step."""
    context = getattr(module, CLASS)
    enter, leave = context.__enter__, context.__exit__
    parts: dict[int, Any] = {}

    @guard
    def entered(self: Any, caller: FrameType) -> None:
        term = TERMS.get(self.name.partition(".")[2])
        if term is not None and _trains(caller) and not (term == "logprob" and _takes_gradients()):
            part = begin(term)
            if part is not None:
                parts[id(self)] = part

    @guard
    def left(self: Any) -> None:
        part = parts.pop(id(self), None)
        if part is not None:
            part.end()

    def __enter__(self: Any) -> Any:  # noqa: N807
        entered(self, sys._getframe(1))
        return enter(self)

    def __exit__(self: Any, *raised: Any) -> Any:  # noqa: N807
        left(self)
        return leave(self, *raised)

    patches.replace(context, "__enter__", __enter__)
    patches.replace(context, "__exit__", __exit__)


def _trains(caller: FrameType) -> bool:
    """Return whether the trainer whose method this is trains. Without a model nothing shows an evaluation."""
    model = getattr(caller.f_locals.get("self"), "model", None)
    return bool(getattr(model, "training", True))


def _takes_gradients() -> bool:
    """Return whether the calling thread takes gradients: then log-probabilities are those of the trained model."""
    return bool(sys.modules["torch"].is_grad_enabled())
