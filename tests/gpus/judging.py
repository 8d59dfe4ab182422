"""What a run of several GPUs must show of the rank whose GPU spun: the others wait for it, as long as it spun."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.analyze import analyze
from traincope.events import Flag, Kind
from traincope.timeline import LedgerClock, Timeline
from traincope.timeline.collectives.nccl import FUNCTIONS, nccl_runs

LIMIT_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A measurement, and whether it is within its limit."""

    name: str
    passed: bool
    measured: float | None
    expected: float | None
    unit: str


def judged(timeline: Timeline, spins_ns: Sequence[int]) -> tuple[Check, ...]:
    """Compare a run with the time that the GPU of its last rank spun in each step, the warm-up included."""
    ledger = analyze(timeline).ledger
    joined, num_calls = _num_joined(timeline), _num_calls(timeline)
    checks = [
        Check(
            name="collectives joined with NCCL's operations on all ranks",
            passed=0 < joined == num_calls,
            measured=joined,
            expected=num_calls,
            unit="calls",
        )
    ]
    if ledger is None or ledger.clock is not LedgerClock.DEVICE:
        return (*checks, Check(name="ledger by the GPUs' clocks", passed=False, measured=None, expected=None, unit=""))
    ambiguous_ns = sum(ledger.ambiguous_waits().values())
    exposed_ns = sum(ledger.total(term) or 0 for term in ledger.order if term.startswith("exposed_"))
    checks.append(
        Check(
            name="ambiguous share of exposed communication",
            passed=exposed_ns > 0 and ambiguous_ns <= LIMIT_RATIO * exposed_ns,
            measured=ambiguous_ns / exposed_ns if exposed_ns else None,
            expected=0.0,
            unit="ratio",
        )
    )
    *others, last = ledger.ranks
    spun_ns = float(np.median(spins_ns[1:]))
    for rank in (*others, last):
        waits = [
            values for term, values in rank.terms.items() if term.startswith("exposed_wait[") and values is not None
        ]
        waited_ns = float(np.median(np.sum(waits, axis=0)[rank.counted])) if waits else 0.0
        expected_ns = 0.0 if rank is last else spun_ns
        name = "wait of the rank that spins" if rank is last else f"wait of rank {rank.rank} for it"
        passed = abs(waited_ns - expected_ns) <= LIMIT_RATIO * spun_ns
        checks.append(Check(name=name, passed=passed, measured=waited_ns, expected=expected_ns, unit="ns per step"))
    return tuple(checks)


def _num_joined(timeline: Timeline) -> int:
    return sum(len(runs) for runs in nccl_runs(timeline).values())


def _num_calls(timeline: Timeline) -> int:
    """Number of calls of collectives that are no messages for NCCL."""
    count = 0
    for rank in timeline.ranks:
        names = [number for number, name in enumerate(rank.names) if name in FUNCTIONS]
        for records in rank.threads.values():
            calls = (records["kind"] == Kind.COLLECTIVE) & (records["flags"] & Flag.POINT_TO_POINT == 0)
            count += int((calls & np.isin(records["name"], names)).sum())
    return count
