"""Data-parallel runs: every step each rank works, then all reduce; who works longest is waited for."""

from collections.abc import Sequence

from tests.timeline.build import Row, collective, group, phase, rank, stall, step
from traincope.events import Phase
from traincope.store import RankRecords


def lockstep(
    work_ns: Sequence[Sequence[int]], *, transfer_ns: int, of: Phase = Phase.FORWARD, all_ns: int = 0
) -> list[RankRecords]:
    """`work_ns[step][rank]`; all have a forward, `all_ns` shorter than the shortest rank's work, the rest is `of`."""
    ranks = range(len(work_ns[0]))
    rows: dict[int, list[Row]] = {number: [] for number in ranks}
    begin = 0
    for number, work in enumerate(work_ns):
        end = begin + max(work) + transfer_ns
        for one in ranks:
            rows[one] += _step(number, begin, end, busy=min(work) - all_ns, work=work[one], of=of)
        begin = end
    everyone = group("dp", *ranks)
    return [rank(one, *rows[one], groups=[everyone], coords={"dp": one}) for one in ranks]


def _step(number: int, begin: int, end: int, *, busy: int, work: int, of: Phase) -> list[Row]:
    reduce = collective(begin + work, end, name="all_reduce", sequence=number, at=number, num_bytes=1_000)
    rows = [step(number, begin, end), phase(Phase.FORWARD, begin, begin + busy, at=number)]
    if work > busy and of is not Phase.NONE:
        rows.append(phase(of, begin + busy, begin + work, at=number))
    return [*rows, reduce, stall(reduce, begin + work, end)]
