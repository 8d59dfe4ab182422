"""Weights that a backward reaches, and whether the training has updated them since.

A training without an optimizer shows its updates only here: torch counts changes in place of a tensor, and a gradient
that an update has used is usually dropped. Nothing here reads a value, so it costs the same on every device.

A dropped gradient alone proves no update: a training may add it to a sum of its own, or drop the gradients of a model
that another model's loss has passed.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from traincope.record.instrumentation.torch_private import version_of, weight_of

MAX_WEIGHTS = 16
"""Weights to watch: those nearest to the loss."""
MAX_NODES = 4096
"""Nodes of autograd's graph to search for them."""


class Update(Enum):
    """Evidence that a training without an optimizer has updated its weights."""

    NONE = auto()
    LIKELY = auto()
    """The same signs can come from a training that has not finished its step."""
    CERTAIN = auto()


@dataclass(slots=True)
class _Noted:
    reference: Any
    """Weak reference to the weight."""
    version: int
    gradient: tuple[int, int] | None
    """Identity and version of its gradient at the end of the last backward. None: it has no gradient."""
    got_gradient: bool = False
    """True if a backward of this step gave it a gradient."""


class WeightVersions:
    """Weights of a training without an optimizer. This keeps none of them alive."""

    __slots__ = ("_backwards", "_noted", "_shows_versions")

    def __init__(self) -> None:
        self._noted: list[_Noted] = []
        self._backwards = 0
        """Backward calls since the weights were noted."""
        self._shows_versions = False
        """True once all weights with gradients have changed in place: then dropped gradients alone are no update."""

    def note(self, outputs: Any) -> None:
        """Note the weights before the first backward of a step: those of the last step, or those that `outputs` need.

        The weights of another model in the same step change nothing.
        """
        alive = [weight for noted in self._noted if (weight := noted.reference()) is not None]
        weights = alive or _weights_of(outputs)
        self._noted = [_Noted(_weak(weight), version_of(weight), _gradient_of(weight)) for weight in weights]
        self._backwards = 0

    def note_gradients(self) -> None:
        """Note at the end of a backward which weights have got gradients.

        FSDP and an optimizer within the backward leave none.
        """
        self._backwards += 1
        for noted in self._noted:
            weight = noted.reference()
            gradient = None if weight is None else _gradient_of(weight)
            noted.got_gradient = noted.got_gradient or gradient not in (None, noted.gradient)
            noted.gradient = gradient

    @property
    def are_alive(self) -> bool:
        """Return whether the training still holds a noted weight."""
        return any(noted.reference() is not None for noted in self._noted)

    def find_update(self) -> Update:
        """Return the evidence of an update since the weights were noted.

        A single weight proves no update: an embedding with `max_norm` changes in forward, and an adversarial input
        changes between two backward calls. So each weight must have changed in place, or its gradient must be used.
        Weights without a gradient, as those of an idle expert, do not count, unless none has one
        (`torch.autograd.grad`). A weight that is gone does not count either.
        """
        alive = [(noted, weight) for noted in self._noted if (weight := noted.reference()) is not None]
        judged = [(noted, weight) for noted, weight in alive if noted.got_gradient] or alive
        unchanged = [(noted, weight) for noted, weight in judged if version_of(weight) == noted.version]
        if not unchanged:
            self._shows_versions = self._shows_versions or bool(judged)
            return Update.CERTAIN if judged else Update.NONE
        if not all(noted.got_gradient and _gradient_of(weight) != noted.gradient for noted, weight in unchanged):
            return Update.NONE
        all_dropped = all(_gradient_of(weight) is None for _, weight in unchanged)
        if len(unchanged) == len(judged) and (self._shows_versions or not all_dropped):
            return Update.NONE
        accumulates = self._backwards > 1
        return Update.CERTAIN if accumulates and all_dropped and not self._shows_versions else Update.LIKELY


def _gradient_of(weight: Any) -> tuple[int, int] | None:
    """Return what differs once a weight's gradient was replaced or changed in place."""
    gradient = weight.grad if weight.is_leaf else None  # torch warns about any other tensor's
    if gradient is None:
        return None
    return id(gradient), 0 if gradient.is_inference() else version_of(gradient)


def _weak(weight: Any) -> Any:
    from torch.utils.weak import TensorWeakRef

    return TensorWeakRef(weight)


def _weights_of(outputs: Any) -> list[Any]:
    """Return weights of the graph below a loss, the nearest first."""
    tensors = outputs if isinstance(outputs, list | tuple) else (outputs,)
    pending = deque(getattr(tensor, "grad_fn", None) for tensor in tensors)
    seen: set[Any] = set()
    weights: list[Any] = []
    while pending and len(weights) < MAX_WEIGHTS and len(seen) < MAX_NODES:
        node = pending.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        weight = weight_of(node)
        if weight is None:
            pending.extend(following for following, _ in node.next_functions)
        else:
            weights.append(weight)
    return weights
