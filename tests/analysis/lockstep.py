"""Data-parallel runs: in every step each rank works, then all reduce and wait for the slowest rank."""

from collections.abc import Collection, Mapping, Sequence

from tests.timeline.build import Row, collective, group, phase, rank, stall, step
from traincope.events import Flag, Phase
from traincope.store import RankRecords

ENOUGH = 60
"""Steps after which a straggler can be named: 59, and the warm-up."""


def lockstep(
    work_ns: Sequence[Sequence[int]],
    *,
    transfer_ns: int,
    of: Phase = Phase.FORWARD,
    all_ns: int = 0,
    also: Mapping[int, Sequence[Row]] | None = None,
    debugged: Mapping[int, Collection[int]] | None = None,
) -> list[RankRecords]:
    """Build ranks from `work_ns[step][rank]`.

    All have a forward, `all_ns` shorter than the shortest work. The rest is `of`. `also`: more rows of a rank.
    `debugged`: rank -> steps in which a tool that slows it down is on.
    """
    ranks = range(len(work_ns[0]))
    rows: dict[int, list[Row]] = {number: [*(also or {}).get(number, ())] for number in ranks}
    begin = 0
    for number, work in enumerate(work_ns):
        end = begin + max(work) + transfer_ns
        for number_ in ranks:
            flags = Flag.DEBUGGED if number in (debugged or {}).get(number_, ()) else 0
            rows[number_] += _step(number, begin, end, busy=min(work) - all_ns, work=work[number_], of=of, flags=flags)
        begin = end
    everyone = group("dp", *ranks)
    return [rank(number_, *rows[number_], groups=[everyone], coords={"dp": number_}) for number_ in ranks]


def _step(number: int, begin: int, end: int, *, busy: int, work: int, of: Phase, flags: int) -> list[Row]:
    reduce = collective(begin + work, end, name="all_reduce", sequence=number, at=number, num_bytes=1_000)
    rows = [step(number, begin, end, flags=flags), phase(Phase.FORWARD, begin, begin + busy, at=number)]
    if work > busy and of is not Phase.NONE:
        rows.append(phase(of, begin + busy, begin + work, at=number))
    return [*rows, reduce, stall(reduce, begin + work, end)]
