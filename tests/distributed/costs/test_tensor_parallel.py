"""Parameters, stored activations and products of a rank of tensor parallelism, counted from the shapes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.distributed.ranks.pool import Pool
from traincope.engine.config import ModelConfig, ParallelConfig
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT, next_token_loss
from traincope.engine.parallel.tensor_parallel import apply_tensor_parallel, loss_over_vocabulary
from traincope.engine.ranks.mesh import build_layout

CPU = torch.device("cpu")
MODEL = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=24, vocabulary=257)
SEQUENCES = 3


def build(tp: int, sequence_parallel: bool) -> GPT:
    layout = build_layout(ParallelConfig(tp=tp), device=CPU)
    with torch.device("meta"):
        model = GPT(MODEL)
    apply_tensor_parallel(model, layout=layout, sequence_parallel=sequence_parallel)
    model.to_empty(device="cpu")
    initialise(model, MODEL, seed=0)
    return model


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shapes() -> dict[str, tuple[int, ...]]:
    return {name: tuple(local(parameter).shape) for name, parameter in build(2, True).named_parameters()}


def test_matrices_are_split_by_heads_channels_and_vocabulary_and_norms_are_whole(two_ranks: Pool) -> None:
    first, second = two_ranks.run(shapes)
    assert (first["embedding.weight"], second["embedding.weight"]) == ((129, 32), (128, 32))
    assert (first["output.weight"], second["output.weight"]) == ((129, 32), (128, 32))
    block = {name.removeprefix("blocks.0."): shape for name, shape in second.items() if name.startswith("blocks.0.")}
    assert block == {
        "attention_norm.weight": (32,),
        "attention.query.weight": (16, 32),
        "attention.key.weight": (8, 32),
        "attention.value.weight": (8, 32),
        "attention.out.weight": (32, 16),
        "feed_forward_norm.weight": (32,),
        "feed_forward.gate.weight": (40, 32),
        "feed_forward.up.weight": (40, 32),
        "feed_forward.down.weight": (32, 40),
    }


def kept_bytes(tp: int, sequence_parallel: bool) -> int:
    """Bytes of the distinct tensors that a block keeps for its backward, without weights and rotation tables."""
    model = build(tp, sequence_parallel)
    block, tokens = model.blocks["0"], MODEL.sequence // (tp if sequence_parallel else 1)
    x = torch.randn(SEQUENCES, tokens, MODEL.hidden, requires_grad=True)
    weights = {local(parameter).untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        local_tensor = local(tensor)
        storage = local_tensor.untyped_storage().data_ptr()
        if storage not in weights and local_tensor.shape != (MODEL.sequence, MODEL.hidden // MODEL.heads // 2):
            kept[storage] = local_tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def kept_numbers(tp: int, *, sequence_parallel: bool) -> float:
    """Numbers per token of the whole sequence, from our shapes; after Korthikanti et al. 2022, table 2.

    The paper's formulas, in bytes of bf16, are sbh (10 + 24/t + 5as/(ht)) with tensor parallelism and sbh (34 +
    5as/h)/t with sequence parallelism. Activations outside the parallel region are whole in the first and split in the
    second.

    Our numbers differ. There is no dropout and no score matrix (attention keeps its output and one logsumexp per head).
    Keys and values are kv_heads wide. SwiGLU keeps four tensors of ffn channels (gate, its silu, up, the product).
    RMSNorm on the CPU keeps its input, the same divided by its length, and 1/length. torch keeps the gathered input of
    q, k, v and of gate and up, which the paper's section 4.2.2 splits and gathers again in backward: 2h instead of
    2h/t.
    """
    h, kv, t = MODEL.hidden, MODEL.kv_heads * MODEL.hidden // MODEL.heads, tp
    norms = 2 * (2 * h + 1)
    gathered = 2 * h
    attention = 3 * h + 2 * kv + MODEL.heads
    feed_forward = 4 * MODEL.ffn
    return norms / (t if sequence_parallel else 1) + gathered + (attention + feed_forward) / t


def test_stored_activations_of_one_rank_agree_with_the_shapes() -> None:
    assert kept_bytes(1, True) == 4 * SEQUENCES * MODEL.sequence * kept_numbers(1, sequence_parallel=False)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_activations_agree_with_the_formula(two_ranks: Pool, sequence_parallel: bool) -> None:
    expected = 4 * SEQUENCES * MODEL.sequence * kept_numbers(2, sequence_parallel=sequence_parallel)
    assert two_ranks.run(kept_bytes, 2, sequence_parallel) == [expected, expected]


class Products(TorchDispatchMode):
    """Counts FLOPs of matrix products on the rank's own tensors. Products of DTensors arrive again as those."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.flops += 2 * args[0].numel() * args[1].shape[-1]
        return func(*args, **(kwargs or {}))


def product_flops(tp: int, sequence_parallel: bool) -> int:
    """FLOPs of a second forward and backward, without scores.

    At the first DTensor torch also tries shapes on fake tensors.
    """
    layout = build_layout(ParallelConfig(tp=tp), device=CPU)
    model = build(tp, sequence_parallel)
    tokens = torch.randint(256, (SEQUENCES, MODEL.sequence), generator=torch.Generator().manual_seed(0))
    with loss_over_vocabulary(layout):
        next_token_loss(model(tokens), tokens).backward()
        with Products() as products:
            next_token_loss(model(tokens), tokens).backward()
    return products.flops


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_all_ranks_together_compute_each_product_once(two_ranks: Pool, sequence_parallel: bool) -> None:
    h, kv = MODEL.hidden, MODEL.kv_heads * MODEL.hidden // MODEL.heads
    weights = MODEL.layers * (2 * h * h + 2 * h * kv + 3 * h * MODEL.ffn) + h * MODEL.vocabulary
    alone = product_flops(1, sequence_parallel)
    assert alone == 6 * SEQUENCES * MODEL.sequence * weights
    assert sum(two_ranks.run(product_flops, 2, sequence_parallel)) == alone
