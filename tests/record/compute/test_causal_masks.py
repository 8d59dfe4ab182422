"""Causal attention counts the same however it is written: fused, with dropout, with a mask, in packed documents.

B sequences, H heads, L tokens, D channels of a head. Forward is 4 B H L^2 D, and backward twice that.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.record.compute.test_flops import counted
from traincope.events import Phase, Work
from traincope.record.compute.causal_masks import CausalMasks

B, H, L, D = 2, 3, 16, 4
WHOLE = 3 * 4 * B * H * L * L * D
LATER = torch.ones(L, L, dtype=torch.bool).triu(1)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_hand(mask: Tensor) -> Attend:
    """Eager attention as in transformers: the mask is added to the scores."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2) / D**0.5 + mask
        return functional.dropout(scores.softmax(-1), 0.1) @ value

    return attend


def fused(mask: Tensor) -> Attend:
    return lambda *qkv: functional.scaled_dot_product_attention(*qkv, attn_mask=mask)


def masked(hidden: Tensor, lowest: float) -> Tensor:
    return torch.zeros(hidden.shape).masked_fill(hidden, lowest)


def folded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As nn.MultiheadAttention multiplies: heads and sequences in one dimension."""
    query, key, value = (each.flatten(0, 1) for each in (query, key, value))
    scores = torch.baddbmm(masked(LATER, -torch.inf), query, key.transpose(1, 2))
    return torch.bmm(scores.softmax(-1), value).unflatten(0, (B, H))


CAUSAL: dict[str, Attend] = {
    "fused": lambda *qkv: functional.scaled_dot_product_attention(*qkv, is_causal=True),
    "dropout": lambda *qkv: functional.scaled_dot_product_attention(*qkv, is_causal=True, dropout_p=0.1),
    "lowest number": by_hand(masked(LATER, torch.finfo(torch.float32).min)),
    "minus 10,000": by_hand(masked(LATER, -1e4)),
    "folded": folded,
    "grouped queries": lambda q, k, v: functional.scaled_dot_product_attention(
        q, k[:, :1], v[:, :1], is_causal=True, enable_gqa=True
    ),
    "grouped queries by hand": lambda q, k, v: CAUSAL["minus 10,000"](q, k[:, :1], v[:, :1]),
    "fused with a mask": fused(masked(LATER, -torch.inf).expand(B, 1, L, L)),
    "fused with a mask of bool": fused(~LATER),
}

SKIPPING = ("fused", "grouped queries")


def model_of(directory: Path, attend: Attend) -> tuple[float, float, float]:
    """Model FLOPs halved and whole, and executed FLOPs but for the scores that a fused kernel computes again."""
    torch.manual_seed(0)
    qkv = [torch.randn(B, H, L, D, requires_grad=True) for _ in range(3)]
    counts = counted(directory, lambda: attend(*qkv).square().sum())
    again = sum(
        count / (2 if work is Work.CAUSAL_ATTENTION_AGAIN else 1)
        for (_, work, _), count in counts.flops.items()
        if work in (Work.ATTENTION_AGAIN, Work.CAUSAL_ATTENTION_AGAIN)
    )
    halved, whole = (sum(counts.model(causal_half=half).values()) for half in (True, False))
    return halved, whole, sum(counts.executed().values()) - again


@pytest.mark.parametrize("name", CAUSAL)
def test_the_same_causal_attention_counts_the_same(tmp_path: Path, name: str) -> None:
    """Only the fused kernel that knows it is causal skips the other half."""
    halved, whole, executed = model_of(tmp_path / "run", CAUSAL[name])
    assert (halved, whole) == (WHOLE / 2, WHOLE)
    assert executed == (WHOLE / 2 if name in SKIPPING else WHOLE)


def hides(*lengths: int) -> Tensor:
    """The pairs that documents of these lengths hide in a sequence."""
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return LATER | (document[:, None] != document[None, :])


@pytest.mark.parametrize("attend_with", [by_hand, fused], ids=["by hand", "fused"])
def test_packed_documents_count_by_the_squares_of_their_lengths(tmp_path: Path, attend_with: type) -> None:
    """4 + 12 tokens in one sequence, 6 + 5 + 5 in the other: 160 + 86 of 2 x 256 pairs. The kernels multiply all."""
    hidden = torch.stack([hides(4, 12), hides(6, 5, 5)]).unsqueeze(1)
    halved, whole, executed = model_of(tmp_path / "run", attend_with(masked(hidden, -torch.inf)))
    packed = WHOLE * (16 + 144 + 36 + 25 + 25) / (2 * L * L)
    assert whole == pytest.approx(packed, rel=1e-6)
    assert halved == pytest.approx(packed / 2, rel=1e-6)
    assert executed == WHOLE


NOT_CAUSAL: dict[str, Attend] = {
    "no mask": by_hand(torch.zeros(L, L)),
    "a prefix sees itself": by_hand(masked(LATER & ~(torch.arange(L) < 4), -torch.inf)),
    "fused with padding": fused(masked((torch.arange(L) > 12).expand(B, 1, L, L), -torch.inf)),
}


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_other_masks_halve_nothing(tmp_path: Path, name: str) -> None:
    assert model_of(tmp_path / "run", NOT_CAUSAL[name]) == (WHOLE, WHOLE, WHOLE)


def test_layers_of_one_shape_that_differ_count_whole(tmp_path: Path) -> None:
    """An encoder and a decoder of equal size: their products look the same."""
    causal, free = CAUSAL["minus 10,000"], NOT_CAUSAL["no mask"]
    both = model_of(tmp_path / "run", lambda *qkv: causal(*qkv) + free(*qkv))
    assert both == (2 * WHOLE, 2 * WHOLE, 2 * WHOLE)


def test_a_large_mask_is_not_copied_to_numbers_of_8_bytes() -> None:
    """16 Mi pairs of bool: neither 128 MiB for a sum, nor another answer."""
    masks, length = CausalMasks(), 4096
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    with torch.profiler.profile(profile_memory=True) as profile:
        masks.saw_attention({"query": torch.empty(1, 1, length, 1), "attn_mask": mask})
    assert masks.shares() == {(1, length): pytest.approx(1)}
    assert max(event.self_cpu_memory_usage for event in profile.events()) < 64 * 2**20


def test_products_of_experts_are_not_attention(tmp_path: Path) -> None:
    """A batched product as large as the queries of attention, but with other sizes."""
    experts, rows = nn.Parameter(torch.ones(B * H, D, 5)), torch.ones(B * H, L, D)
    causal, qkv = CAUSAL["minus 10,000"], [torch.ones(B, H, L, D, requires_grad=True) for _ in range(3)]
    counts = counted(tmp_path / "run", lambda: causal(*qkv).sum() + torch.bmm(rows, experts).sum())
    assert counts.flops[Phase.FORWARD, Work.MATMUL, "float32"] == 2 * B * H * L * D * 5
    assert counts.flops[Phase.FORWARD, Work.CAUSAL_PRODUCTS, "float32"] == WHOLE / 3
