"""Sentences of evidence: where ranks stood, and who waited for them."""

from collections.abc import Mapping, Sequence

from traincope.analysis.faults.hangs.evidence.calls import FLIGHT_WINDOW, Call
from traincope.analysis.faults.hangs.evidence.standing import Standing
from traincope.analysis.faults.hangs.evidence.waiting import Edge
from traincope.analysis.faults.hangs.mismatches import Mismatch, form_of
from traincope.events import NO_STEP
from traincope.units import duration, numbers

SECOND_NS = 1_000_000_000


def stood(ranks: Sequence[int], standings: Mapping[int, Standing], *, lasted_ns: int) -> str:
    """Describe where the culprits stood, e.g. "rank 1 stood at train.py:41 for 34 s"."""
    sites = {standings[rank].site for rank in ranks if rank in standings}
    subject, time = numbers(ranks, "rank"), lasting(lasted_ns)
    if len(sites) == 1 and (site := sites.pop()) is not None:
        return f"{subject} stood at {site}{time}"
    doing = {standings[rank].doing for rank in ranks if rank in standings}
    where = f" ({doing.pop()})" if len(doing) == 1 and None not in doing else ""
    without_stack = dict.fromkeys(_without_stack(standings[rank]) for rank in ranks if rank in standings)
    return f"{subject} entered no collective{time}{where}{''.join(without_stack)}"


def _without_stack(each: Standing) -> str:
    """Say why the rank's stack is not known although it was asked for, and what its process does by the kernel."""
    if not each.no_stack:
        return ""
    seen = f"; its process {', '.join(each.seen)}" if each.seen else ""
    return f"{seen}; no stack is known: {each.no_stack}"


def lasting(ns: int) -> str:
    """E.g. " for 34 s"; nothing below a second: dumps do not always show how long it lasted."""
    return f" for {duration(ns)}" if ns >= SECOND_NS else ""


def waited(edges: Sequence[Edge], victims: Sequence[int], standings: Mapping[int, Standing]) -> str:
    """Describe who waited and in what, e.g. "rank 0 waited for it in all_reduce on dp, at train.py:41"."""
    direct = sorted({edge.rank for edge in edges})
    pronoun = "it" if len({edge.other for edge in edges}) == 1 else "them"
    at = lines_of(direct, standings)
    parts = [f"{numbers(direct, 'rank')} waited for {pronoun} in {place_of_call(edges[0].call)}{at}"]
    behind = sorted(set(victims) - set(direct))
    if behind:
        parts.append(f"{numbers(behind, 'rank')} waited for {numbers(direct, 'rank')}")
    return "; ".join(parts)


def place_of_call(call: Call) -> str:
    """The operation and the axis, e.g. "all_reduce on dp"."""
    return f"{call.operation} on {call.group.axis}"


def lines_of(ranks: Sequence[int], standings: Mapping[int, Standing]) -> str:
    """The line at which all of these ranks waited whose lines are known, e.g. ", at train.py:41"; empty without one."""
    lines = {standings[rank].waited_at for rank in ranks if rank in standings} - {None}
    return f", at {lines.pop()}" if len(lines) == 1 else ""


def in_cycle(ranks: Sequence[int], edges: Sequence[Edge], standings: Mapping[int, Standing]) -> str:
    """The ranks of a deadlock with their collectives and the ranks that they waited for."""
    alike: dict[str, list[int]] = {}
    for rank in ranks:
        inside = [edge for edge in edges if edge.rank == rank and edge.other in ranks]
        others = numbers(sorted({edge.other for edge in inside}), "rank")
        waited_for = f"waited for {others} in {place_of_call(inside[0].call)}{lines_of([rank], standings)}"
        alike.setdefault(waited_for, []).append(rank)
    return "; ".join(f"{numbers(same, 'rank')} {waited_for}" for waited_for, same in alike.items())


def sides(mismatch: Mismatch, standings: Mapping[int, Standing]) -> str:
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
    inside = {rank: each for rank, each in standings.items() if rank in calls and calls[rank] in each.waits}
    issued = (f"{numbers(ranks, 'rank')} issued {form}{lines_of(ranks, inside)}" for form, ranks in listed)
    first, *others = issued
    example = mismatch.first
    since = "" if example.window == FLIGHT_WINDOW else f" since step {example.window}"
    where = f"collective {example.sequence} on {example.group.axis}{since}"
    return f"{where}: {', '.join([first, *others])}"
