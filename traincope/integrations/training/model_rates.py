"""FLOPs per token of a model of transformers, by its configuration and by what is frozen in it.

A weight's products are three: in forward, for the gradient of its input, and for its own gradient. A frozen weight has
no third one. The second is missing where nothing trainable comes before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from traincope.errors import UsageError
from traincope.plan.model.configurations import shape_of_config
from traincope.plan.model.flops import TRAINING
from traincope.plan.model.rates import Rates, model_rates
from traincope.record.run import active_run

CONV1D = "Conv1D"
"""Class of transformers that multiplies like nn.Linear, in GPT-2."""
ATTENTION = "Attention"
"""Part of the names of transformers' classes of attention."""
NO_LIMIT = 2**31
"""Tokens of a sequence if the configuration sets no limit."""


def configured_rates(model: Any) -> Rates | None:
    """Rates of forward and backward; None for a configuration without a formula, and for frozen weights of modules that
    are not understood: experts, unusual attention, sharded Conv1D.

    Attention in windows that are shorter than the longest sequence has no rate: sequences differ in length.
    """
    config = model.config.to_dict()
    longest = config.get("max_position_embeddings") or config.get("n_positions") or NO_LIMIT
    try:
        shape = shape_of_config(config, source=type(model).__name__, sequence=longest)
    except UsageError:
        return None
    if shape.windows is not None:
        return None
    rates = model_rates(shape)
    if all(weight.requires_grad for weight in model.parameters()):
        return rates
    if shape.experts or any(map(_is_sharded, model.modules())):
        return None
    products = products_of(model)
    if products.num_attention != shape.layers:
        return None
    return replace(rates, token=float(products.flops), squared_length=rates.squared_length * products.attention_share())


def describe_rates(model: Any, args: Any) -> None:
    """Describe the FLOPs per token in the run, for kernels that cannot be counted. `args`: the Trainer's arguments."""
    rates, run = configured_rates(model), active_run()
    if rates is not None and run is not None:
        dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else str(model.dtype).removeprefix("torch.")
        run.describe(
            formula_flops_per_token=rates.token,
            formula_flops_per_squared_length=rates.squared_length,
            formula_flops_per_routed_token=rates.routed_token,
            formula_flops_dtype=dtype,
        )


def products_of(model: nn.Module) -> "Products":
    """Products of a model whose modules run in the order in which they are registered.

    Matrices side by side in a module (queries, keys and values; gate and up) share its input. The last takes what the
    others made. A layer's norms run before its matrices.
    """
    products = Products()
    products.pass_through(model, gradient=False)
    return products


@dataclass(slots=True)
class Products:
    """Products of a model's matrices, and its attention."""

    flops: int = 0
    """FLOPs per token of the matrices, forward and backward."""
    num_attention: int = 0
    num_attention_backward: int = 0
    """Layers whose attention runs backward."""

    def attention_share(self) -> float:
        """FLOPs of all attention over those with a backward in each layer, which takes twice the forward."""
        return (self.num_attention + 2 * self.num_attention_backward) / (TRAINING * self.num_attention)

    def pass_through(self, module: nn.Module, *, gradient: bool) -> bool:
        """Add a module's products. `gradient`: its input needs a gradient. Returns whether its output needs one."""
        if _is_matrix(module):
            weight: Any = module.weight
            self.flops += 2 * _size(module) * (1 + gradient + weight.requires_grad)
        parts = list(_parts(module))
        inner = [part for part in parts if any(map(_is_matrix, part.modules()))]
        if len(inner) > 1 and all(map(_is_projection, inner)):
            made = [self.pass_through(part, gradient=gradient) for part in inner[:-1]]
            if ATTENTION in type(module).__name__:
                self.num_attention += 1
                self.num_attention_backward += any(made)
            gradient = self.pass_through(inner[-1], gradient=any(made))
        else:
            if any(ATTENTION in type(part).__name__ for part in parts):
                parts.sort(key=inner.__contains__)
            for part in parts:
                gradient = self.pass_through(part, gradient=gradient)
        return gradient or any(weight.requires_grad for weight in module.parameters())


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Children with weights."""
    return (child for child in module.children() if next(child.parameters(), None) is not None)


def _is_matrix(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == CONV1D


def _size(matrix: Any) -> int:
    """Elements of the whole matrix. A packed weight (bitsandbytes) has fewer, a sharded one (ZeRO-3) may have none."""
    return int(matrix.in_features * matrix.out_features if isinstance(matrix, nn.Linear) else matrix.weight.numel())


def _is_sharded(module: nn.Module) -> bool:
    """True for a Conv1D whose size is lost: a placeholder or a flat shard instead of its weight."""
    return type(module).__name__ == CONV1D and next(module.parameters()).ndim != 2


def _is_projection(module: nn.Module) -> bool:
    """Return whether it is a matrix, alone or with adapters of PEFT around it."""
    return _is_matrix(module) or hasattr(module, "base_layer") or isinstance(module, nn.ModuleDict)
