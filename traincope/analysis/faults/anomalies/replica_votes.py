"""Votes of replicas: tensors that must have the same bytes on several ranks.

Two ranks hold replicas of a tensor if each names the other (`store.job.state_checks`). Replicas of a tensor are ranks
that are connected in this way: with DDP and tensor parallelism, the ranks of two axes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.arrays import Ints
from traincope.store.job.state_checks import Layout, StateCheck, StateTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Tensors that differ between replicas, by the first check that shows it."""

    step: int
    at_ns: Mapping[int, int]
    """Rank -> time of this check on the rank's own clock."""
    equal_step: int | None
    """Step of the last check before, in which all these replicas were equal; None: there was none."""
    equal_ns: Mapping[int, int]
    """Rank -> time of that check on the rank's own clock."""
    ranks: tuple[int, ...]
    """The compared replicas."""
    odd: tuple[int, ...]
    """Ranks with other bytes than most replicas; empty if no bytes are on most of them."""
    tensors: tuple[StateTensor, ...]
    num_parameters: int
    """Parameters that were compared between these replicas."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters whose bytes, or whose optimizer state, differ."""
        return tuple(dict.fromkeys(tensor.parameter for tensor in self.tensors))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Tensors with the same replicas."""

    ranks: tuple[int, ...]
    tensors: tuple[StateTensor, ...]
    positions: Ints
    """Position in each rank's layout, of shape (tensors, ranks)."""


class ReplicaVotes:
    """Votes over the checks of a run, in order of their steps."""

    def __init__(self) -> None:
        self._layouts: dict[int, Layout] = {}
        self._groups: tuple[_Group, ...] = ()
        """The groups in these layouts, by rank. Most checks have those of the check before."""
        self._equal: dict[tuple[int, tuple[int, ...]], Mapping[int, StateCheck]] = {}
        """Optimizer and replicas -> the last checks in which they were equal."""
        self._known: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
        """Optimizer, replicas and odd ranks of the divergences so far. Replicas that differ do so from then on."""

    def add(self, checks: Mapping[int, StateCheck]) -> Iterator[Divergence]:
        """Compare the checks of one optimizer in one step, by rank, and yield what differs for the first time."""
        optimizer = next(iter(checks.values())).layout.optimizer
        for group in self._grouped(checks):
            sums = np.stack(
                [checks[rank].sums[at] for rank, at in zip(group.ranks, group.positions.T, strict=True)], axis=1
            )
            differing = np.flatnonzero((sums != sums[:, :1]).any(axis=1))
            if not len(differing):
                self._equal[optimizer, group.ranks] = {rank: checks[rank] for rank in group.ranks}
            tensors: dict[tuple[int, ...], list[StateTensor]] = defaultdict(list)
            for at in differing.tolist():
                tensors[_odd(group.ranks, sums[at])].append(group.tensors[at])
            for odd, named in tensors.items():
                if not self._is_known(optimizer, group, odd):
                    yield self._divergence(optimizer, group, odd, named, checks)
                self._known.add((optimizer, group.ranks, odd))

    def _is_known(self, optimizer: int, group: _Group, odd: tuple[int, ...]) -> bool:
        """Return whether these or more replicas differed before by these ranks, or by some that still differ.

        A rank without a check in this step leaves fewer replicas. What differed among all does not begin there.
        """
        for other, ranks, before in self._known:
            if other != optimizer or not set(group.ranks) <= set(ranks):
                continue
            if before == odd:
                return True
            if ranks != group.ranks and (
                set(odd) <= set(before) if odd else not before or set(before) & {*group.ranks}
            ):
                return True
        return False

    def _divergence(
        self,
        optimizer: int,
        group: _Group,
        odd: tuple[int, ...],
        tensors: Sequence[StateTensor],
        checks: Mapping[int, StateCheck],
    ) -> Divergence:
        equal = self._equal.get((optimizer, group.ranks), {})
        if not equal:  # a rank has no check in this step
            wider = (
                checks
                for (other, ranks), checks in self._equal.items()
                if other == optimizer and set(group.ranks) <= set(ranks)
            )
            equal = max(wider, key=lambda checks: next(iter(checks.values())).step, default={})
        return Divergence(
            step=checks[group.ranks[0]].step,
            at_ns={rank: checks[rank].at_ns for rank in group.ranks},
            equal_step=next((check.step for check in equal.values()), None),
            equal_ns={rank: check.at_ns for rank, check in equal.items()},
            ranks=group.ranks,
            odd=odd,
            tensors=tuple(tensors),
            num_parameters=len({tensor.parameter for tensor in group.tensors}),
        )

    def _grouped(self, checks: Mapping[int, StateCheck]) -> tuple[_Group, ...]:
        same = self._layouts.keys() == checks.keys()
        if not same or any(self._layouts[rank] is not check.layout for rank, check in checks.items()):
            self._layouts = {rank: checks[rank].layout for rank in sorted(checks)}
            self._groups = tuple(replica_groups(self._layouts))
        return self._groups


def replica_groups(layouts: Mapping[int, Layout]) -> Iterator[_Group]:
    """Yield the tensors that have replicas among these ranks, by their replicas."""
    holders: dict[tuple[object, ...], dict[int, tuple[int, StateTensor]]] = defaultdict(dict)
    for rank, layout in layouts.items():
        for at, tensor in enumerate(layout.tensors):
            if tensor.checked and rank in tensor.replicas:
                holders[*tensor.key, tensor.dtype, tensor.num_bytes][rank] = at, tensor
    grouped: dict[tuple[int, ...], list[dict[int, tuple[int, StateTensor]]]] = defaultdict(list)
    for each in holders.values():
        for ranks in _connected({rank: tensor.replicas for rank, (_, tensor) in each.items()}):
            if len(ranks) > 1:
                grouped[ranks].append(each)
    for ranks, held in grouped.items():
        yield _Group(
            ranks=ranks,
            tensors=tuple(each[ranks[0]][1] for each in held),
            positions=np.array([[each[rank][0] for rank in ranks] for each in held], dtype=np.int64),
        )


def _connected(named: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield sets of ranks that name each other, directly or through others. `named`: rank -> the ranks it names."""
    left = dict(named)
    while left:
        reached, waiting = set[int](), [next(iter(left))]
        while waiting:
            rank = waiting.pop()
            if rank in left:
                reached.add(rank)
                waiting += [other for other in left.pop(rank) if other in left and rank in left[other]]
        yield tuple(sorted(reached))


def _odd(ranks: tuple[int, ...], sums: Ints) -> tuple[int, ...]:
    """Ranks that hold other bytes than most replicas do; empty if two or no bytes are the most frequent ones."""
    values, counts = np.unique(sums, return_counts=True)
    most = counts == counts.max()
    if counts.max() < 2 or most.sum() > 1:
        return ()
    return tuple(np.array(ranks)[sums != values[most][0]].tolist())
