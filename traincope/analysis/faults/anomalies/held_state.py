"""State that changed between two steps of its optimizer, by comparisons on the rank itself. It needs no replica.

Programs may write to their parameters between steps, e.g. to clamp them or to swap in averages. torch counts such
writes, except those through `.data`. So a change counts as corruption only if it is what bad memory does: one bit of
one tensor, on one replica, in at most `MAX_FLIPS` checks of the rank.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from traincope.store.job.state_checks import HeldCheck, StateTensor

MAX_FLIPS = 2
"""Most checks of a rank with changes that torch did not count. A program that writes does so again and again."""
MAX_KEPT = 256
"""Comparisons of a rank that are kept. A program that writes changes some in every check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One bit that flipped after the optimizer's step of a checked step, and before its next one."""

    rank: int
    step: int
    tensor: StateTensor
    bit: int
    """Bit of an element, 0 is the lowest."""
    good_ns: int
    """Time of the check after the optimizer's step, on the rank's own clock."""
    at_ns: int
    """Time of the comparison."""


class HeldState:
    """Changes between steps, over the comparisons of a run."""

    def __init__(self) -> None:
        self._changed: dict[int, deque[HeldCheck]] = defaultdict(lambda: deque(maxlen=MAX_KEPT))
        """Rank -> the latest comparisons with a change that torch did not count."""
        self._num_changed: Counter[int] = Counter()
        """Rank -> number of all such comparisons."""
        self.num_explained = 0
        """Comparisons in which the program itself replaced or changed tensors."""

    def add(self, rank: int, check: HeldCheck) -> None:
        self.num_explained += bool(check.explained)
        if check.changed:
            self._changed[rank].append(check)
            self._num_changed[rank] += 1

    @property
    def num_edited(self) -> int:
        """Comparisons with changes that are not single flipped bits: most likely the program wrote."""
        return sum(number for rank, number in self._num_changed.items() if not self._are_flips(self._changed[rank]))

    def flips(self) -> Iterator[Flip]:
        """Yield the flipped bits so far."""
        for rank, checks in self._changed.items():
            for check in checks if self._are_flips(checks) else ():
                ((at, bit),) = check.changed.items()
                tensor = check.layout.tensors[at]
                if bit is not None and not self._changed_elsewhere(rank, check, tensor):
                    yield Flip(
                        rank=rank, step=check.step, tensor=tensor, bit=bit, good_ns=check.good_ns, at_ns=check.at_ns
                    )

    def _are_flips(self, checks: Collection[HeldCheck]) -> bool:
        single = all(len(check.changed) == 1 and None not in check.changed.values() for check in checks)
        return single and len(checks) <= MAX_FLIPS

    def _changed_elsewhere(self, rank: int, check: HeldCheck, tensor: StateTensor) -> bool:
        """Return whether a replica changed in the same check: the program wrote on both."""
        others = (other for number in tensor.replicas if number != rank for other in self._changed.get(number, ()))
        return any(
            other.step == check.step and any(other.layout.tensors[at].key == tensor.key for at in other.changed)
            for other in others
        )
