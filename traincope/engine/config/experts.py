"""The table `[experts]`: a mixture of experts in place of each block's feed-forward."""

import math
from dataclasses import dataclass

from traincope.engine.config.checks import require, require_not_negative, require_positive
from traincope.engine.config.parallel import ParallelConfig
from traincope.engine.config.sharing import FSDPConfig

ROW_BYTES = 16
NUMBER_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 4, "fp8_block": 4}
"""Bytes of a number in the products of experts. Those of fp8 multiply fp8 numbers as fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """The experts of a layer, and the router's choice of a few of them for each token."""

    number: int = 8
    """Experts of each layer."""
    top_k: int = 2
    """Experts that each token passes."""
    ffn: int = 352
    """Inner width of one expert's SwiGLU."""
    shared: bool = False
    """Each token also passes a feed-forward of `model.ffn` channels."""
    capacity_factor: float | None = None
    """Rows that an expert has for each sequence, in units of its fair share. A token without a free row is dropped.
    Empty rows are padding; with cp no row stays empty. None: no limit."""
    balance: float = 0.01
    """Weight of the auxiliary loss that spreads each sequence's tokens over the experts. 0 switches it off."""
    hot_expert: int | None = None
    """An expert that each token passes regardless of the router: a deliberate imbalance."""

    def __post_init__(self) -> None:
        for name in ("number", "top_k", "ffn"):
            require_positive(getattr(self, name), key=f"experts.{name}")
        require(
            self.top_k <= self.number,
            f"experts.top_k = {self.top_k} is more than experts.number = {self.number}; use at most that many",
        )
        if self.capacity_factor is not None:
            require_positive(
                self.capacity_factor, key="experts.capacity_factor", remedy="leave it out to set no capacity"
            )
        require_not_negative(self.balance, key="experts.balance")
        require(
            self.hot_expert is None or 0 <= self.hot_expert < self.number,
            f"experts.hot_expert = {self.hot_expert} is not one of the {self.number} experts; count them from 0",
        )

    def check(self, parallel: ParallelConfig, fsdp: FSDPConfig, *, hidden: int, precision: str) -> None:
        """Raise ConfigError if experts of `hidden` channels cannot be divided over these ranks."""
        require(
            self.ffn % parallel.tp == 0,
            f"experts.ffn = {self.ffn} does not split over parallel.tp = {parallel.tp} ranks; use a multiple of "
            f"{parallel.tp}",
        )
        require(
            self.number % parallel.ep == 0,
            f"experts.number = {self.number} does not split over parallel.ep = {parallel.ep} ranks; use a multiple of "
            f"{parallel.ep}, or fewer ranks",
        )
        self._check_rows("model.hidden", hidden, ranks=1, precision=precision)
        self._check_rows("experts.ffn", self.ffn, ranks=parallel.tp, precision=precision)
        if parallel.ep > 1:
            self._check_shards(fsdp, ranks=parallel.shards // parallel.ep, hidden=hidden)

    def _check_rows(self, name: str, width: int, *, ranks: int, precision: str) -> None:
        """Check that rows are multiples of 16 bytes: torch's grouped product accepts only those."""
        numbers = ranks * ROW_BYTES // NUMBER_BYTES[precision]
        over = f" over parallel.tp = {ranks} ranks" if ranks > 1 else ""
        require(
            width % numbers == 0,
            f"{name} = {width} makes rows{over} whose size is not a multiple of {ROW_BYTES} bytes in {precision}, as "
            f"torch's grouped product requires; use a multiple of {numbers}",
        )

    def _check_shards(self, fsdp: FSDPConfig, *, ranks: int, hidden: int) -> None:
        require(
            hidden % ranks == 0,
            f"model.hidden = {hidden} does not split over the fsdp x cp / ep = {ranks} ranks that have the same "
            f"experts; use a multiple of {ranks}",
        )
        for setting in ("node_ranks", "quantize_weights", "quantize_gradients"):
            require(
                not getattr(fsdp, setting),
                f"fsdp.{setting} works on parameters that all ranks share, not on spread experts; leave it out, or "
                "leave out parallel.ep",
            )

    def capacity(self, tokens: int) -> int | None:
        """Rows that an expert has for a sequence of `tokens` tokens; None: no limit.

        Lepikhin et al. 2020 (GShard, arXiv:2006.16668), section 2.2; its groups are sequences here.
        """
        if self.capacity_factor is None:
            return None
        return math.ceil(min(self.capacity_factor * tokens * self.top_k / self.number, tokens))
