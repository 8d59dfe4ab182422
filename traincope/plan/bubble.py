"""Pipeline bubble by formula, for equal stages and free transfers.

P stages, M microbatches, V stages a rank. `bubble_ratio` is the idle share of *total* time; papers
also print idle over *ideal* time, `bubble_over_ideal`: the two are b and b / (1 - b).
"""

from collections.abc import Callable

from traincope.errors import UsageError


def gpipe(*, stages: int, microbatches: int, chunks: int = 1) -> float:
    """(P - 1) / (M + P - 1): Huang et al., GPipe, arXiv 1811.06965, section 2.3."""
    del chunks
    return (stages - 1) / (microbatches + stages - 1)


def one_forward_one_backward(*, stages: int, microbatches: int, chunks: int = 1) -> float:
    """As GPipe: 1F1B saves memory, not time (Narayanan et al., arXiv 2104.04473, section 2.2.1)."""
    return gpipe(stages=stages, microbatches=microbatches, chunks=chunks)


def interleaved(*, stages: int, microbatches: int, chunks: int) -> float:
    """(P - 1) / (V M + P - 1): Narayanan et al., arXiv 2104.04473, section 2.2.2."""
    return (stages - 1) / (chunks * microbatches + stages - 1)


FORMULAS: dict[str, Callable[..., float]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}
"""Schedule -> its formula: adding one is one line."""


def bubble_ratio(schedule: str, *, stages: int, microbatches: int, chunks: int = 1) -> float:
    """Idle share of total time, in [0, 1). `stages` is the number of ranks in the pipeline.

    Raises UsageError for an unknown schedule or sizes below 1.
    """
    if schedule not in FORMULAS:
        raise UsageError(f"there is no bubble formula for schedule {schedule!r}; known are {', '.join(FORMULAS)}")
    for name, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if value < 1:
            raise UsageError(f"{name} = {value} must be at least 1")
    return FORMULAS[schedule](stages=stages, microbatches=microbatches, chunks=chunks)


def bubble_over_ideal(schedule: str, *, stages: int, microbatches: int, chunks: int = 1) -> float:
    """Idle over ideal (bubble-free) time, the convention of (P - 1) / M."""
    ratio = bubble_ratio(schedule, stages=stages, microbatches=microbatches, chunks=chunks)
    return ratio / (1 - ratio)
