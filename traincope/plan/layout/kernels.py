"""Rates that the kernels of a device reach, as functions of an operator's size.

A product of rows x inner and inner x outer takes the longer of

    FLOPs / (peak x product x waves x depth)    waves: quantisation into tiles, depth: inner / (inner + `depth`)
    bytes / (memory bandwidth x copies)

Tiles: NVIDIA, Matrix Multiplication Background User's Guide, sections 3 and 4. A product with few tiles and a large
inner size is split along it, as libraries do (stream-K: Osama et al. 2023, arXiv:2301.03598).

Fused attention takes FLOPs / (peak x attention x length x width), with length = tokens / (tokens + `attention_tokens`)
and width = head / (head + `attention_head`): exponentials take a share of the time that falls with the head's width
(Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3.2). All other operators take bytes / (memory bandwidth
x copies).
"""

from dataclasses import dataclass, replace
from math import ceil

from traincope.errors import UsageError

TILES = ((256, 128), (128, 128), (64, 128))
"""Rows and columns of the tiles that a library chooses from; smaller ones reach a smaller rate."""
TILE_RATES = (1.0, 0.9, 0.7)
MIN_SPLIT = 2048
"""Least inner size that a split leaves."""
ATTENTION_BACKWARD = 2.5 / 0.8
"""Time of fused attention's backward over that of its forward: five products instead of two, at 0.8 of the rate (Dao
2023, FlashAttention-2, arXiv:2307.08691, section 3.1 and figures 4 to 6)."""
ORDERED_BACKWARD = 2.5 * 306.2 / 166.0
"""The same with sums in a fixed order: FlashAttention 2 on an H100, 306.2 and 166.0 TFLOP/s with 8,192 tokens and heads
of 128 (Dao-AILab/flash-attention, pull request 1893)."""
STREAMING = 0.87
"""Share of the memory's bandwidth that copies of whole parameters reach, and the optimizer: 2.9 of 3.35 TB/s on an H100
(Azure AI benchmarking guide, ND_H100_v5_results.md)."""
LAUNCH_SECONDS, GAP_SECONDS = 8e-6, 2e-6
"""Time in which the host launches a kernel from PyTorch, and time between two kernels on a device. Both are orders of
magnitude: no row of `make truth-plan` depends on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Constants of a family of devices. Raises UsageError for impossible shares."""

    product: float
    """Share of peak that a large product reaches."""
    depth: float = 0.0
    """Inner size of a product that reaches half of that."""
    processors: int | None = None
    """Multiprocessors that share the tiles of a product. None: products have no tiles."""
    attention: float
    """Share of peak that the forward of fused attention reaches with long sequences."""
    attention_head: float = 0.0
    """Width of a head with which it reaches half of its rate."""
    attention_tokens: float = 0.0
    """Tokens of a sequence with which it reaches half of its rate."""
    attention_backward: float = ATTENTION_BACKWARD
    """Time of its backward over that of its forward."""
    triton: float = 1.0
    """Rate of the first fused kernels over that of the present ones."""
    ordered: float | None = None
    """As `attention`, of the kernels whose sums keep an order. None: they are the same."""
    copies: float = 1.0
    """Share of the memory's bandwidth that the other operators reach."""
    unhidden: float = 1.0
    """Share of a collective of tp that waits if it runs in pieces next to its product."""
    launches: bool = True
    """The host launches kernels one by one."""
    launch_seconds: float = LAUNCH_SECONDS
    """Time in which the host launches a kernel."""
    contention: float = 0.0
    """Share of hidden communication by which it delays the work that hides it."""

    def __post_init__(self) -> None:
        for name in ("product", "attention", "copies"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise UsageError(
                    f"{name} is {value:g}; it must lie in (0, 1]: the share of the peak that kernels reach"
                )

    def with_product(self, share: float) -> "Kernels":
        """These kernels with another share for large products, and attention as much faster or slower."""
        return replace(self, product=share, attention=min(self.attention * share / self.product, 1.0))

    def product_share(self, rows: float, inner: float, outer: float, *, number: float = 1.0) -> float:
        """Share of peak of `number` products that run together."""
        return self.product * inner / (inner + self.depth) * self._waves(rows, inner, outer, number)

    def attention_share(self, tokens: float, head: float, *, triton: bool = False, ordered: bool = False) -> float:
        """Share of peak of the forward of fused attention over `tokens` keys with heads of width `head`."""
        most = self.ordered if ordered and self.ordered is not None else self.attention
        share = most * head / (head + self.attention_head) * tokens / (tokens + self.attention_tokens)
        return share * self.triton if triton else share

    def backward_share(self, *, ordered: bool = False) -> float:
        """Time of the backward of fused attention over that of its forward."""
        return ORDERED_BACKWARD if ordered else self.attention_backward

    def _waves(self, rows: float, inner: float, outer: float, number: float) -> float:
        """Share of the processors' time that the tiles of a product fill with its elements."""
        if self.processors is None:
            return 1.0
        splits = max(int(inner // MIN_SPLIT), 1)
        return max(
            rate * self._filled(rows, outer, number, tile, splits) for tile, rate in zip(TILES, TILE_RATES, strict=True)
        )

    def _filled(self, rows: float, outer: float, number: float, tile: tuple[int, int], splits: int) -> float:
        assert self.processors is not None
        tiles = ceil(rows / tile[0]) * ceil(outer / tile[1])
        fitting = rows * outer / (tiles * tile[0] * tile[1])
        waves = tiles * number / self.processors
        if waves < splits:
            # Splits fill the processors that a last wave would leave idle.
            waves *= splits
        return fitting * waves / ceil(waves)


def uniform(share: float) -> Kernels:
    """Kernels that all reach the same share of peak, whatever their size."""
    return Kernels(product=share, attention=share, attention_backward=2.0, launches=False)
