"""Collectives between jobs: which job waits in them, and which joins last. Replica groups exchange gradients so."""

from collections.abc import Sequence
from dataclasses import dataclass

from traincope.analysis.attribution.terms import exposed_transfer, exposed_wait
from traincope.analysis.ledger.ledger import Ledger
from traincope.timeline import JoinedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One job's part in the collectives with other jobs on one axis."""

    role: str
    axis: str
    num_collectives: int
    """Those that all members recorded, over the job's ranks."""
    last_ratio: float
    """Share of them that this job joined last."""
    others_ns: int
    """Time that the others were longer in these than it was, over ranks: the longest of the others."""
    wait_ratio: float | None
    """Share of its step time in which it waits for the others. None: it has no counted step."""
    transfer_ratio: float | None


def exchanges(joined: Sequence[JoinedGroup], roles: Sequence[str], ledgers: Sequence[Ledger]) -> tuple[Exchange, ...]:
    """List each job's part by axis, in the order of the jobs. `roles` and `ledgers`: one per run."""
    found = []
    for axis in dict.fromkeys(group.axis for group in joined):
        for run, (role, ledger) in enumerate(zip(roles, ledgers, strict=True)):
            number = last = others_ns = 0
            for group in (group for group in joined if group.axis == axis):
                durations, latest = group.durations_ns, group.last
                for place in (place for place, member in enumerate(group.members) if member.run == run):
                    is_last = latest == place
                    number += len(is_last)
                    last += int(is_last.sum())
                    others_ns += int((durations.max(axis=0) - durations[place])[is_last].sum())
            if number:
                found.append(
                    Exchange(
                        role=role,
                        axis=axis,
                        num_collectives=number,
                        last_ratio=last / number,
                        others_ns=others_ns,
                        wait_ratio=ledger.share(exposed_wait(axis)),
                        transfer_ratio=ledger.share(exposed_transfer(axis)),
                    )
                )
    return tuple(found)
