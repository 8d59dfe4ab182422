"""Sentences of evidence: where ranks stood, and who waited for them."""

from collections.abc import Mapping, Sequence

from traincope.analysis.faults.hangs.evidence.calls import FLIGHT_WINDOW, Call
from traincope.analysis.faults.hangs.evidence.standing import Standing
from traincope.analysis.faults.hangs.evidence.waiting import Edge
from traincope.analysis.faults.hangs.mismatches import Mismatch, form_of
from traincope.events import NO_STEP
from traincope.units import duration, numbers


def stood(ranks: Sequence[int], standings: Mapping[int, Standing], *, lasted_ns: int) -> str:
    """Describe where the culprits stood, e.g. "rank 1 stood at train.py:41 for 34 s"."""
    sites = {standings[rank].site for rank in ranks if rank in standings}
    subject, time = numbers(ranks, "rank"), lasting(lasted_ns)
    if len(sites) == 1 and (site := sites.pop()) is not None:
        return f"{subject} stood at {site}{time}"
    doing = {standings[rank].doing for rank in ranks if rank in standings}
    where = f" ({doing.pop()})" if len(doing) == 1 and None not in doing else ""
    return f"{subject} entered no collective{time}{where}"


def lasting(ns: int) -> str:
    """E.g. " for 34 s"; nothing if the time is not known, as in imported dumps."""
    return f" for {duration(ns)}" if ns else ""


def waited(edges: Sequence[Edge], victims: Sequence[int]) -> str:
    """Describe who waited and in what, e.g. "rank 0 waited for it in all_reduce on dp"."""
    direct = sorted({edge.rank for edge in edges})
    pronoun = "it" if len({edge.other for edge in edges}) == 1 else "them"
    parts = [f"{numbers(direct, 'rank')} waited for {pronoun} in {place_of_call(edges[0].call)}"]
    behind = sorted(set(victims) - set(direct))
    if behind:
        parts.append(f"{numbers(behind, 'rank')} waited for {numbers(direct, 'rank')}")
    return "; ".join(parts)


def place_of_call(call: Call) -> str:
    """The operation and the axis, e.g. "all_reduce on dp"."""
    return f"{call.operation} on {call.group.axis}"


def in_cycle(ranks: Sequence[int], edges: Sequence[Edge]) -> str:
    """Each rank of a deadlock with its collective and the ranks that it waited for."""
    parts = []
    for rank in ranks:
        inside = [edge for edge in edges if edge.rank == rank and edge.other in ranks]
        others = numbers(sorted({edge.other for edge in inside}), "rank")
        parts.append(f"rank {rank} waited for {others} in {place_of_call(inside[0].call)}")
    return "; ".join(parts)


def sides(mismatch: Mismatch) -> str:
    """Both sides, e.g. "rank 0 issued all_reduce in step 10, rank 1 issued all_gather in step 11"."""
    calls = mismatch.calls
    if mismatch.between is not None:
        earliest, latest = mismatch.between
        return f"on {mismatch.first.group.axis}, between steps {earliest} and {latest}"
    by_side: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        step = "" if call.step == NO_STEP else f" in step {call.step}"
        by_side.setdefault(f"{form_of(call)}{step}", []).append(rank)
    listed = sorted(by_side.items(), key=lambda side: (-len(side[1]), side[1]))
    first, *others = (f"{numbers(ranks, 'rank')} issued {form}" for form, ranks in listed)
    example = mismatch.first
    since = "" if example.window == FLIGHT_WINDOW else f" since step {example.window}"
    where = f"collective {example.sequence} on {example.group.axis}{since}"
    return f"{where}: {', '.join([first, *others])}"
