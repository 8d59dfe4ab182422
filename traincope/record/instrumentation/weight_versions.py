"""Weights that a backward reaches, and whether the training has updated them since.

A training without an optimizer shows its updates only here: torch counts changes in place of a tensor, and a gradient
that an update has used is usually dropped. Nothing here reads a value, so it costs the same on every device.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

from traincope.record.instrumentation.torch_private import version_of, weight_of

MAX_WEIGHTS = 16
"""Weights to watch: those nearest to the loss."""
MAX_NODES = 4096
"""Nodes of autograd's graph to search for them."""


@dataclass(slots=True)
class _Noted:
    reference: Any
    """Weak reference to the weight."""
    version: int
    had_gradient: bool = False

    def is_updated(self, weight: Any) -> bool:
        return version_of(weight) != self.version or (self.had_gradient and weight.grad is None)


class WeightVersions:
    """Weights of a training without an optimizer. This keeps none of them alive."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: list[_Noted] = []

    def note(self, outputs: Any) -> None:
        """Note the weights before the first backward of a step: those of the last step, or those that `outputs` need.

        The weights of another model in the same step change nothing.
        """
        weights = [weight for noted in self._noted if (weight := noted.reference()) is not None]
        self._noted = [_Noted(_weak(weight), version_of(weight)) for weight in weights or _weights_of(outputs)]

    def note_gradients(self) -> None:
        """Note at the end of a backward which weights have gradients.

        FSDP and an optimizer within the backward leave none.
        """
        for noted in self._noted:
            weight = noted.reference()
            noted.had_gradient = noted.had_gradient or (weight is not None and weight.grad is not None)

    def are_updated(self) -> bool:
        """Return whether every noted weight has changed in place or lost its gradient.

        A single weight proves no update: an embedding with `max_norm` changes in forward, and an adversarial input
        changes between two backward calls. A weight that is gone does not count.
        """
        alive = [(noted, weight) for noted in self._noted if (weight := noted.reference()) is not None]
        return bool(alive) and all(noted.is_updated(weight) for noted, weight in alive)


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
