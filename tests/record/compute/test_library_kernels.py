"""Linear layers with a library's own kernel count by their shapes, as the same layers of torch do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

import traincope
from tests.record.compute.test_flops import by_phase, counted
from traincope.analysis import analyze
from traincope.events import Phase, Work


class NumpyProduct(torch.autograd.Function):
    """A kernel outside torch's operators, like those of Transformer Engine."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(x.detach().numpy() @ weight.detach().numpy().T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = (each.detach().numpy() for each in ctx.saved_tensors)
        back = gradient.numpy()
        to_x = torch.from_numpy(back @ weight) if ctx.needs_input_grad[0] else None
        rows, columns = back.reshape(-1, back.shape[-1]), x.reshape(-1, x.shape[-1])
        return to_x, torch.from_numpy(rows.T @ columns) if ctx.needs_input_grad[1] else None


class TorchBackward(NumpyProduct):
    """The same forward; torch multiplies in the backward."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.flatten(0, -2).t() @ x.flatten(0, -2)


class Opaque(nn.Linear):
    product: type[torch.autograd.Function] = NumpyProduct

    def forward(self, input: Tensor) -> Tensor:
        product: Tensor = self.product.apply(input, self.weight)
        return product if self.bias is None else product + self.bias


class HalfOpaque(Opaque):
    product = TorchBackward


def layers(linear: type[nn.Linear]) -> nn.Module:
    """With frozen weights in the middle, as LoRA has them."""
    torch.manual_seed(0)
    model = nn.Sequential(linear(8, 24), nn.ReLU(), linear(24, 24, bias=False), nn.LayerNorm(24), linear(24, 8))
    model[2].requires_grad_(False)
    return model


X = torch.ones(2, 5, 8)


@pytest.mark.parametrize("linear", [Opaque, HalfOpaque])
def test_linear_layers_with_a_kernel_of_their_own_count_like_torchs(tmp_path: Path, linear: type[nn.Linear]) -> None:
    """Forward; gradients of three inputs less that of the data; gradients of two weights."""
    first, middle = 2 * 10 * 8 * 24, 2 * 10 * 24 * 24
    expected = {Phase.FORWARD: 2 * first + middle, Phase.BACKWARD: first + middle + 2 * first}
    for name, kind in (("eager", nn.Linear), ("opaque", linear)):
        flop_counts = counted(tmp_path / name, lambda: layers(kind)(X).square().mean())  # noqa: B023
        measured = by_phase(flop_counts)
        if linear is HalfOpaque and name == "opaque":
            # torch computes the gradient of the data and of the frozen weights too: they run, so they count
            measured[Phase.BACKWARD] -= first + middle
        assert measured == expected
        assert flop_counts.coverage_ratio == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_backward_of_a_checkpointed_layer_counts_once(tmp_path: Path, reentrant: bool) -> None:
    layer, x = nn.Sequential(Opaque(8, 8, bias=False)), X.clone().requires_grad_()

    def step() -> Tensor:
        result: Tensor = checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
        return result.square().mean()

    once = 2 * 10 * 8 * 8
    assert by_phase(counted(tmp_path / "run", step)) == {Phase.FORWARD: once, Phase.BACKWARD: 2 * once}


def test_a_backward_that_does_not_run_does_not_count(tmp_path: Path) -> None:
    layer, other = Opaque(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def step() -> Tensor:
        layer(X)
        loss: Tensor = other(X).sum()
        return loss

    once = 2 * 10 * 8 * 8
    assert by_phase(counted(tmp_path / "run", step)) == {Phase.FORWARD: 2 * once, Phase.BACKWARD: once}


@torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=())
def flash_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size_left: int) -> Tensor:  # noqa: ARG001
    """An operator with the name and the arguments of the flash_attn library's, but on a CPU."""
    mixed = nn.functional.scaled_dot_product_attention(
        *(each.transpose(1, 2) for each in (q, k, v)), is_causal=causal, enable_gqa=True
    )
    return mixed.transpose(1, 2).contiguous()


@torch.library.custom_op("flash_attn::_flash_attn_backward", mutates_args=())
def flash_backward(
    dout: Tensor,  # noqa: ARG001
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,  # noqa: ARG001
    window_size_left: int,  # noqa: ARG001
) -> list[Tensor]:
    """Gradients of the right shapes: their values are not the point here."""
    return [torch.zeros_like(each) for each in (q, k, v)]


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.causal, ctx.window = causal, window
        result: Tensor = torch.ops.flash_attn._flash_attn_forward(q, k, v, causal, window)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = torch.ops.flash_attn._flash_attn_backward(gradient, *ctx.saved_tensors, ctx.causal, ctx.window)
        return *gradients, None, None


class Attention(nn.Module):
    """As in a model: a module calls the library."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int) -> Tensor:
        mixed: Tensor = FlashAttention.apply(q, k, v, causal, window)
        return mixed


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_the_flash_attn_library_counts_like_torchs(tmp_path: Path, causal: bool) -> None:
    """2 sequences of 8 tokens, 4 heads that share 2 heads of keys, 16 channels."""
    q, k, v = (torch.randn(2, 8, heads, 16, requires_grad=True) for heads in (4, 2, 2))
    flop_counts = counted(tmp_path / "run", lambda: Attention()(q, k, v, causal, -1).sum())
    whole = 3 * 4 * 2 * 4 * 8 * 8 * 16
    assert flop_counts.model(causal_half=False) == {"float32": whole}
    assert flop_counts.model(causal_half=True) == {"float32": whole / 2 if causal else whole}


def test_attention_of_the_library_in_windows_makes_the_flops_unknown(tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, 8, 4, 16, requires_grad=True) for _ in range(3))
    with traincope.run(tmp_path / "run") as run:
        for _ in range(3):
            Attention()(q, k, v, True, 4).sum().backward()
            run.step()
    reason = analyze(traincope.open_run(tmp_path / "run")).utilization.reason
    assert reason is not None
    assert reason.startswith("the FLOPs of attention over packed documents, or in windows, are not known")


class Positions(nn.Module):
    """A matrix that multiplies nothing."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(length, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[-2]]


@pytest.mark.parametrize("length", [5, 8])
def test_a_matrix_that_is_added_is_reported_as_missed(tmp_path: Path, length: int) -> None:
    """The square table fits input and output."""
    model, x = nn.Sequential(Positions(length), nn.Linear(8, 3)), torch.ones(2, length, 8)
    flop_counts = counted(tmp_path / "run", lambda: model(x).sum())
    assert flop_counts.coverage_ratio == 24 / (24 + 8 * length)
    assert all(work is not Work.BY_MODULE for _, work, _ in flop_counts.flops)


def test_the_report_says_how_much_the_modules_gave(tmp_path: Path) -> None:
    """Three of four equal layers."""
    model = nn.Sequential(*(Opaque(8, 8, bias=False) for _ in range(3)), nn.Linear(8, 8, bias=False))
    x = X.clone().requires_grad_()
    with traincope.run(tmp_path / "run") as run:
        run.describe(peak_flops=1e12)
        for _ in range(4):
            model(x).sum().backward()
            run.step()
    used = analyze(traincope.open_run(tmp_path / "run")).utilization
    assert used.work.convention == (
        "as counted, 75 % of them by the weights and inputs of modules whose kernels cannot be counted, "
        "causal attention halved"
    )
    assert used.work.model == 4 * 3 * 2 * 10 * 8 * 8
    assert used.ratios.mfu is not None
    assert used.ratios.hfu is None
