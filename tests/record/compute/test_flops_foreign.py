"""Foreign models: counted as torch's own counter counts them, and right where that counter misses products."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.record.compute.test_flops import BATCH, CONFIG, SHAPE, by_phase, counted, gpt_step
from traincope.engine.model.model import GPT
from traincope.events import Phase
from traincope.plan.model.flops import step_flops
from traincope.record.compute.flop_formulas import implied_flops


class Recurrent(nn.Module):
    """Products of every step of a sequence, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 16, num_layers=2, bidirectional=True)
        self.projected = nn.LSTM(32, 16, proj_size=4)
        self.cell = nn.LSTMCell(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        sequence, _ = self.projected(self.gru(x)[0])
        hidden: Tensor = self.cell(sequence[-1])[0]
        return hidden


class Encoder(nn.Module):
    """Attention that returns its weights is not fused."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(16, 40), nn.GELU(), nn.Linear(40, 16))

    def forward(self, x: Tensor) -> Tensor:
        mixed, weights = self.attention(x, x, x)
        result: Tensor = self.feed_forward(x + mixed) + weights.sum()
        return result


class Contractions(nn.Module):
    """Products by index, over several dimensions, of several matrices, of complex numbers, of pieces of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(4, 5, 6)), nn.Parameter(torch.ones(5, 6, 3))
        self.filters = nn.Parameter(torch.ones(27, 4))

    def forward(self, x: Tensor) -> Tensor:
        contracted = torch.tensordot(self.a, self.b, 2) + torch.einsum("bij,ijk->bk", self.a, self.b)
        several = torch.linalg.multi_dot([contracted, self.b[0].t(), self.a[0].t()])
        complex_ = (torch.complex(several, several) @ torch.complex(self.a[0], self.a[0])).abs()
        pieces = nn.functional.unfold(x, 3).transpose(1, 2) @ self.filters
        return complex_.sum() + pieces.sum()


FOREIGN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "recurrent": (Recurrent, (5, 3, 8)),
    "encoder": (Encoder, (2, 6, 16)),
    "contractions": (Contractions, (2, 3, 8, 8)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, (1, 3), stride=(1, 2), dilation=(1, 2)),
            nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False),
        ),
        (2, 3, 10, 12),
    ),
    "volumes and lines": (
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 3, stride=2), nn.ConvTranspose3d(4, 2, 2), nn.Flatten(2), nn.Conv1d(2, 3, 5)
        ),
        (2, 2, 7, 7, 7),
    ),
    "parametrised": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), (3, 6)),
    "in bfloat16": (lambda: nn.Linear(6, 5, dtype=torch.bfloat16), (3, 6)),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
def test_without_fused_attention_the_count_equals_torchs_counter(tmp_path: Path, name: str) -> None:
    make, shape = FOREIGN[name]
    model = make()
    x = torch.randn(shape, dtype=next(model.parameters()).dtype)

    def step() -> Tensor:
        loss: Tensor = model(x).square().mean()
        return loss

    with FlopCounterMode(display=False) as forward:
        loss = step()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    flop_counts = counted(tmp_path / "run", step)
    assert by_phase(flop_counts) == {
        Phase.FORWARD: forward.get_total_flops(),
        Phase.BACKWARD: backward.get_total_flops(),
    }
    assert forward.get_total_flops() > 0


def test_products_that_torchs_counter_misses_are_counted(tmp_path: Path) -> None:
    """With a vector, 2 x 4 x 5 and as an outer product back; a bilinear form, 2 x 3 x (4 x 5 + 5) x 6."""
    matrix, form = nn.Parameter(torch.ones(4, 5)), nn.Bilinear(4, 5, 6)

    def step() -> Tensor:
        return (matrix @ torch.ones(5)).sum() + form(torch.ones(3, 4), torch.ones(3, 5)).sum()

    with FlopCounterMode(display=False) as blind:
        step()
    assert blind.get_total_flops() == 0
    assert by_phase(counted(tmp_path / "run", step))[Phase.FORWARD] == 2 * 4 * 5 + 2 * 3 * (4 * 5 + 5) * 6


class Mixture(nn.Module):
    """Each token takes two of four experts, as in transformers: a loop over experts, each with the rows that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 20), nn.Linear(20, 8)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            result = result.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return result


def test_an_expert_counts_by_the_rows_that_it_takes(tmp_path: Path) -> None:
    """A formula with all four experts would give almost twice as much."""
    model, x = Mixture(), torch.randn(30, 8, requires_grad=True)
    router, taken = 2 * 30 * 8 * 4, 2 * 30 * 2 * (8 * 20 + 20 * 8)
    flop_counts = counted(tmp_path / "run", lambda: model(x).sum())
    assert by_phase(flop_counts) == {Phase.FORWARD: router + taken, Phase.BACKWARD: 2 * (router + taken)}
    assert flop_counts.coverage_ratio == 1


class Stacked(nn.Module):
    """Experts: every row meets one of four matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8, 5))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.bmm(rows.view(4, -1, 8), self.weight)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(8, 5), (3, 6, 8)),
        (nn.Conv2d(8, 6, 3, padding=1, groups=2), (2, 8, 5, 5)),
        (nn.ConvTranspose1d(3, 4, 2), (2, 3, 7)),
        (Stacked(), (12, 8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_implied_flops_equal_the_products_of_the_parameters(
    tmp_path: Path, layer: nn.Module, shape: tuple[int, ...]
) -> None:
    """A size at which the missed products weigh as much as they cost."""
    x = torch.ones(shape)
    implied = implied_flops(layer, x)
    assert by_phase(counted(tmp_path / "run", lambda: layer(x).sum()))[Phase.FORWARD] == implied > 0


def test_a_tied_output_matrix_counts_like_its_own_matrix(tmp_path: Path) -> None:
    model = GPT(CONFIG)
    assert model.output is not None
    assert model.embedding is not None
    model.output.weight = model.embedding.weight
    flop_counts = counted(tmp_path / "run", gpt_step(model))
    assert flop_counts.model(causal_half=False) == {"float32": step_flops(SHAPE, batch=BATCH).model}
    assert flop_counts.coverage_ratio == 1
