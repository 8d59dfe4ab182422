"""Silent corruption in a running job: the checks of the ranks' state, judged as they are written.

Replicas on other hosts take part if this host sees their directories, on a shared file system. Of a tensor with many
replicas, a vote needs only some: an agent reads a bounded number of files, however many ranks the job has.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from traincope.analysis.faults.anomalies.corruption import StateEvidence, ToAxis, fault_of
from traincope.analysis.faults.faults import Fault
from traincope.store.job.state_checks import Layout, StateCheck, StateCheckTail
from traincope.store.layout import STATE_CHECKS_FILE, rank_directory

MAX_WAITING = 8
"""Most checks that wait for a rank which has not written its own."""
MAX_PARTNERS = 15
"""Most other replicas of a tensor that take part in a vote. The report compares all."""


class StateWatch:
    """Judge of one attempt."""

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._run, self._attempt = run, attempt
        self._evidence = StateEvidence()
        self._tails: dict[int, StateCheckTail] = {}
        self._partners: set[int] = set()
        """Ranks with which those of this host are compared."""
        self._newest: dict[int, int] = {}
        """Rank -> step of its newest check."""
        self._waiting: dict[tuple[int, int], dict[int, StateCheck]] = defaultdict(dict)
        """Step and optimizer -> the ranks' checks, until all replicas have theirs."""

    def look(self, own: Collection[int], *, to_axis: ToAxis, last: bool) -> tuple[Fault, ...]:
        """Read new checks, and return all faults so far whose first rank is one of this host. `last`: nothing follows.

        `to_axis` knows the clocks of this host's ranks.
        """
        self._follow(own)
        for rank in own:
            layouts = {id(check.layout): check.layout for check in self._read(rank)}
            self._partners |= {partner for layout in layouts.values() for partner in _partners(rank, layout)}
        self._follow(self._partners)
        for rank in self._tails.keys() - set(own):
            self._read(rank)
        for key in sorted(self._waiting):
            if not (last or len(self._waiting) > MAX_WAITING or self._is_complete(key[0], self._waiting[key])):
                break
            self._evidence.add_checks(self._waiting.pop(key))
        return tuple(fault_of(each) for each in self._evidence.corruptions(to_axis) if each.ranks[0] in own)

    def _is_complete(self, step: int, checks: dict[int, StateCheck]) -> bool:
        """Return whether all ranks that hold replicas, as far as they can be read, have come to this step."""
        layouts = {id(check.layout): check.layout for check in checks.values()}
        needed = {rank for layout in layouts.values() for tensor in layout.tensors for rank in tensor.replicas}
        return all(self._newest.get(rank, -1) >= step for rank in needed if rank in self._tails)

    def _follow(self, ranks: Iterable[int]) -> None:
        """Follow those of the ranks that have checks."""
        for rank in ranks:
            directory = rank_directory(self._run, attempt=self._attempt, rank=rank)
            if rank not in self._tails and (directory / STATE_CHECKS_FILE).exists():
                self._tails[rank] = StateCheckTail(directory)

    def _read(self, rank: int) -> list[StateCheck]:
        """Add a rank's new checks to the evidence. Returns those of its state after a step."""
        checks = list(self._tails[rank].read()) if rank in self._tails else []
        of_steps = [check for check in checks if isinstance(check, StateCheck)]
        for check in of_steps:
            self._waiting[check.step, check.layout.optimizer][rank] = check
            self._newest[rank] = max(self._newest.get(rank, 0), check.step)
        for held in (check for check in checks if not isinstance(check, StateCheck)):
            self._evidence.add_held(rank, held)
        return of_steps


def _partners(rank: int, layout: Layout) -> Iterator[int]:
    """Yield the replicas with which a rank's tensors are compared: those that follow it in the ring of all replicas."""
    for replicas in {tensor.replicas for tensor in layout.tensors}:
        ordered = sorted(replicas)
        after = bisect_right(ordered, rank)
        ring = [*ordered[after:], *ordered[:after]]
        yield from [each for each in ring if each != rank][:MAX_PARTNERS]
