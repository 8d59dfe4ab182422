"""Size of a pipeline, and the place of its stages."""

from dataclasses import dataclass

from traincope.errors import UsageError

MAX_RANKS = 4096
MAX_FORWARDS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """P ranks, M microbatches, V stages per rank. Raises UsageError for sizes below 1 or too large."""

    ranks: int
    microbatches: int
    chunks: int = 1
    """Stages of one rank: model chunks, virtual stages."""

    def __post_init__(self) -> None:
        for name, value in (("ranks", self.ranks), ("microbatches", self.microbatches), ("chunks", self.chunks)):
            if value < 1:
                raise UsageError(f"{name} is {value}; it must be at least 1")
        if self.ranks > MAX_RANKS:
            raise UsageError(f"ranks is {self.ranks}; one pipeline must have at most {MAX_RANKS}")
        if self.ranks * self.microbatches * self.chunks > MAX_FORWARDS:
            raise UsageError(
                f"{self.ranks} ranks x {self.microbatches} microbatches x {self.chunks} stages per rank are too many "
                f"forwards; their number must be at most {MAX_FORWARDS}, because an order lists each of them"
            )

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks


def loop(rank: int, shape: Shape) -> tuple[int, ...]:
    """Stages go round the ranks: rank r has r, r + P, r + 2 P (Narayanan et al. 2021, arXiv:2104.04473)."""
    return tuple(range(rank, shape.stages, shape.ranks))


def vee(rank: int, shape: Shape) -> tuple[int, ...]:
    """Stages go down the ranks and up again: rank r has r and 2 P - 1 - r. Rank 0 has the first and the last stage."""
    return rank, shape.stages - 1 - rank
