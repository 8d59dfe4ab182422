"""Collectives between jobs: which job waits in them, and for which job. Replica groups exchange gradients so."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.attribution.terms import exposed_transfer, exposed_wait
from traincope.analysis.ledger.ledger import Ledger
from traincope.arrays import Bools, Ints
from traincope.timeline import JoinedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One job's part in the collectives with other jobs on one axis."""

    role: str
    axis: str
    num_collectives: int
    """Those that all members recorded, over the job's ranks."""
    awaited_ns: int
    """Time for which another member waited for this job, which joined last: over its ranks, the longest of the others.
    Only in the waiting job's counted steps, as its other shares, and after the first step that all share.
    """
    begun_ns: int
    """The same in the counted steps that share the first collectives: jobs begin at different times."""
    awaited_ratio: float | None
    """Share of such times of all jobs; None: no member waited so."""
    wait_ratio: float | None
    """Share of its step time in which it waits for the others. None: it has no counted step."""
    transfer_ratio: float | None


def exchanges(joined: Sequence[JoinedGroup], roles: Sequence[str], ledgers: Sequence[Ledger]) -> tuple[Exchange, ...]:
    """List each job's part by axis, in the order of the jobs. `roles` and `ledgers`: one per run."""
    found = []
    for axis in dict.fromkeys(group.axis for group in joined):
        for run, (role, ledger) in enumerate(zip(roles, ledgers, strict=True)):
            number = awaited_ns = begun_ns = 0
            for group in (group for group in joined if group.axis == axis):
                latest, waited_ns = np.argmin(group.waits_ns, axis=0), _longest_wait_ns(group, ledgers)
                first = _in_first_step(group)
                for place in (place for place, member in enumerate(group.members) if member.run == run):
                    is_last = latest == place
                    number += len(is_last)
                    awaited_ns += int(waited_ns[is_last & ~first].sum())
                    begun_ns += int(waited_ns[is_last & first].sum())
            if number:
                found.append(
                    Exchange(
                        role=role,
                        axis=axis,
                        num_collectives=number,
                        awaited_ns=awaited_ns,
                        begun_ns=begun_ns,
                        awaited_ratio=None,
                        wait_ratio=ledger.share(exposed_wait(axis)),
                        transfer_ratio=ledger.share(exposed_transfer(axis)),
                    )
                )
    return tuple(_with_ratio(each, [other for other in found if other.axis == each.axis]) for each in found)


def _longest_wait_ns(group: JoinedGroup, ledgers: Sequence[Ledger]) -> Ints:
    """Return how long a member waited for the last one in each collective: the longest, of those in counted steps."""
    waited: Ints = np.where(_counted(group, ledgers), group.waits_ns, 0).max(axis=0)
    return waited


def _counted(group: JoinedGroup, ledgers: Sequence[Ledger]) -> Bools:
    """Return for members x collectives whether the collective is in a counted step of the member."""
    steps = []
    for member, rows in zip(group.members, group.rows, strict=True):
        numbers = [rank.numbers[rank.counted] for rank in ledgers[member.run].ranks if rank.rank == member.rank]
        steps.append(np.isin(member.step[rows], np.concatenate([np.empty(0, dtype=np.int64), *numbers])))
    return np.stack(steps)


def _in_first_step(group: JoinedGroup) -> Bools:
    """Return whether the collective is in a member's first step with these collectives."""
    steps = [member.step[rows] for member, rows in zip(group.members, group.rows, strict=True)]
    first: Bools = np.any([step == step[0] for step in steps], axis=0)
    return first


def _with_ratio(exchange: Exchange, on_axis: Sequence[Exchange]) -> Exchange:
    total_ns = sum(each.awaited_ns for each in on_axis)
    return replace(exchange, awaited_ratio=exchange.awaited_ns / total_ns if total_ns else None)
