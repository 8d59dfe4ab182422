"""Numbers that a format saturates or rounds to zero, counted at the operands of linear layers."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from traincope.engine.precision.formats import Format
from traincope.engine.precision.scaled_products import ScaledLinear
from traincope.engine.precision.scales import round_to
from traincope.engine.ranks.local import local_part

Counts = dict[str, dict[str, list[int | None]]]
"""Layer -> operand -> numbers, saturated ones, and underflowed ones."""


class Observer:
    """Hooks on the linear layers of a model that trains. They change no number, and cost several passes over each."""

    def __init__(self, number_format: Format) -> None:
        self.counts: Counts = {}
        self._format = number_format

    def watch(self, modules: Mapping[int, nn.Module]) -> None:
        """Observe all linear layers of a rank's stages."""
        for module in modules.values():
            for name, layer in module.named_modules():
                if isinstance(layer, nn.Linear):
                    layer.register_forward_hook(self._hook(name.removeprefix("module.")))

    def _hook(self, name: str) -> Callable[[nn.Linear, tuple[Tensor, ...], Tensor], None]:
        def observe(layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not (layer.training and output.requires_grad):
                return
            self._count(name, "input", layer, inputs[0])
            self._count(name, "weight", layer, layer.weight)
            output.register_hook(lambda gradient: self._count(name, "gradient", layer, gradient))

        return observe

    @torch.no_grad()
    def _count(self, name: str, kind: str, layer: nn.Linear, tensor: Tensor) -> None:
        numbers = local_part(tensor).detach()
        scaled = layer.operands[kind] if isinstance(layer, ScaledLinear) else None
        dtype = self._format.compute if scaled is None else scaled.dtype
        scale = torch.ones((), device=numbers.device) if scaled is None else scaled.scale(numbers)
        magnitudes = (numbers.float() * scale).abs()
        saturated = int((~(magnitudes <= torch.finfo(dtype).max)).sum())
        underflowed = None
        if numbers.dtype != dtype or dtype == torch.float32:
            zeros = round_to(numbers, dtype, scale).values.float() == 0
            underflowed = int((zeros & (numbers != 0)).sum())
        add(self.counts, name, kind, [numbers.numel(), saturated, underflowed])


def add(counts: Counts, name: str, kind: str, more: list[int | None]) -> None:
    """Add counts in place. A sum with an unknown part is unknown."""
    before = counts.setdefault(name, {}).get(kind, [0, 0, 0])
    counts[name][kind] = [None if a is None or b is None else a + b for a, b in zip(before, more, strict=True)]
