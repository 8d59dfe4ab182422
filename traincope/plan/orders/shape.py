"""The size of a pipeline, and where its stages lie."""

from dataclasses import dataclass

from traincope.errors import UsageError

MOST_RANKS = 4096
MOST_FORWARDS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """P ranks, M microbatches, V stages a rank; raises UsageError for sizes below 1, and for those of no pipeline."""

    ranks: int
    microbatches: int
    chunks: int = 1
    """Stages of one rank: model chunks, virtual stages."""

    def __post_init__(self) -> None:
        for name, value in (("ranks", self.ranks), ("microbatches", self.microbatches), ("chunks", self.chunks)):
            if value < 1:
                raise UsageError(f"{name} = {value} must be at least 1")
        if self.ranks > MOST_RANKS:
            raise UsageError(f"ranks = {self.ranks} of one pipeline must be at most {MOST_RANKS}")
        if self.ranks * self.microbatches * self.chunks > MOST_FORWARDS:
            raise UsageError(
                f"{self.ranks} ranks x {self.microbatches} microbatches x {self.chunks} stages a rank must be at most "
                f"{MOST_FORWARDS}, for an order lists each"
            )

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks


def loop(rank: int, shape: Shape) -> tuple[int, ...]:
    """Stages go round the ranks: rank r has r, r + P, r + 2 P (Narayanan et al. 2021, arXiv:2104.04473)."""
    return tuple(range(rank, shape.stages, shape.ranks))


def vee(rank: int, shape: Shape) -> tuple[int, ...]:
    """Stages go down the ranks and up again: rank r has r and 2 P - 1 - r, so rank 0 begins and ends."""
    return rank, shape.stages - 1 - rank
