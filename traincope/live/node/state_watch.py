"""Silent corruption in a running job: the checks of the ranks' state, judged as they are written.

Replicas on other hosts take part if this host sees their directories, on a shared file system.
"""

import logging
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from traincope.analysis.faults.anomalies.corruption import StateEvidence, ToAxis, fault_of
from traincope.analysis.faults.faults import Fault
from traincope.store.job.state_checks import StateCheck, StateCheckTail
from traincope.store.layout import STATE_CHECKS_FILE, attempt_directory, rank_directory, rank_number

logger = logging.getLogger(__name__)

MAX_WAITING = 8
"""Most checks that wait for a rank which has not written its own."""
MAX_OTHER_BYTES = 256 << 20
"""Most bytes that are read at once of ranks on other hosts. The report compares the rest."""


class StateWatch:
    """Judge of one attempt."""

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._run, self._attempt = run, attempt
        self._evidence = StateEvidence()
        self._tails: dict[int, StateCheckTail] = {}
        self._left_out: set[int] = set()
        self._newest: dict[int, int] = {}
        """Rank -> step of its newest check."""
        self._waiting: dict[tuple[int, int], dict[int, StateCheck]] = defaultdict(dict)
        """Step and optimizer -> the ranks' checks, until all replicas have theirs."""

    def look(self, own: Collection[int], *, to_axis: ToAxis, last: bool) -> tuple[Fault, ...]:
        """Read new checks, and return all faults so far whose first rank is one of this host. `last`: nothing follows.

        `to_axis` knows the clocks of this host's ranks.
        """
        self._find_ranks(own)
        for rank, tail in self._tails.items():
            for check in tail.read():
                if isinstance(check, StateCheck):
                    self._waiting[check.step, check.layout.optimizer][rank] = check
                    self._newest[rank] = max(self._newest.get(rank, 0), check.step)
                else:
                    self._evidence.add_held(rank, check)
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

    def _find_ranks(self, own: Collection[int]) -> None:
        """Follow ranks with checks: at first those of this host, then others, within the bound."""
        paths = [rank_directory(self._run, attempt=self._attempt, rank=rank) for rank in own]
        if not self._tails and not any(map(_size, paths)):
            return
        left = MAX_OTHER_BYTES
        for path in sorted(attempt_directory(self._run, self._attempt).glob("rank-*")):
            rank = rank_number(path)
            if rank is None or rank in self._tails or rank in self._left_out:
                continue
            left -= 0 if rank in own else _size(path)
            if left >= 0 or rank in own:
                self._tails[rank] = StateCheckTail(path)
            else:
                self._left_out.add(rank)
                logger.warning("the state of rank %d is compared by the report only: too many bytes at once", rank)


def _size(rank: Path) -> int:
    """Bytes of a rank's file of checks; 0 without one."""
    try:
        return (rank / STATE_CHECKS_FILE).stat().st_size
    except OSError:
        return 0
