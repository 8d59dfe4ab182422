"""The exact device ledger of a program: every instant of every step has one owner. And the queues of its streams.

A step runs from the device's begin of it to that of the next one. Its instants are classified one elementary interval
at a time: between two neighbouring times at which anything begins or ends, nothing changes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from tests.virtual_gpu.actions import ACTIVITIES, PHASES, Kind, Meaning, Program
from tests.virtual_gpu.machine import OnHost, Ran, RankRecord, execute

EVALUATION = Meaning.EVALUATION.value
LAUNCH_GAP, KERNEL_WAIT = "launch_gap", "kernel_wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTruth:
    """Ledger of one step of one rank, in ns. Terms of 0 ns are left out."""

    begin_ns: int
    end_ns: int
    terms: Mapping[str, int]
    evaluation_ns: int
    hidden: Mapping[str, int]
    """Host waits while the device worked. They are in no term."""

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.begin_ns - self.evaluation_ns


Meetings = Mapping[tuple[str, int], int | None]
"""Group and position of each collective -> its shortest kernel in ns; None if a member's trace is missing."""


def truth(program: Program) -> dict[int, dict[int, StepTruth]]:
    """Rank -> step -> ledger, for the ranks with a trace."""
    records = [record for record in execute(program) if record.rank not in program.untraced]
    transfers = transfers_ns(records, program.untraced)
    return {record.rank: rank_truth(record, transfers) for record in records}


def transfers_ns(records: Sequence[RankRecord], untraced: frozenset[int]) -> Meetings:
    transfers: dict[tuple[str, int], int | None] = {}
    for ran in (ran for record in records for ran in record.works):
        if ran.work.group is not None:
            key, ns = (ran.work.group.name, ran.position), ran.end_ns - ran.start_ns
            missing = not untraced.isdisjoint(ran.work.group.ranks)
            transfers[key] = None if missing else min(transfers.get(key) or ns, ns)
    return transfers


def rank_truth(record: RankRecord, transfers: Meetings) -> dict[int, StepTruth]:
    ledger = {}
    for number, begin_ns, end_ns in steps(record):
        terms: Counter[str] = Counter()
        hidden: Counter[str] = Counter()
        for start_ns, stop_ns in elementary(record, transfers, begin_ns, end_ns):
            terms[owner(record, transfers, start_ns)] += stop_ns - start_ns
            for activity in hidden_waits(record, start_ns):
                hidden[activity] += stop_ns - start_ns
        evaluation_ns = terms.pop(EVALUATION, 0)
        ledger[number] = StepTruth(
            begin_ns=begin_ns, end_ns=end_ns, terms=dict(terms), evaluation_ns=evaluation_ns, hidden=dict(hidden)
        )
    return ledger


def steps(record: RankRecord) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each step on the device."""
    opened = [each for each in record.ranges if each.action.meaning is Meaning.STEP]
    begins = [_device_ns(record, each.begin_ns) for each in opened]
    ends = [*begins[1:], *(_device_ns(record, each.end_ns) for each in opened[-1:])]
    for each, begin_ns, end_ns in zip(opened, begins, ends, strict=True):
        yield int(each.action.name.partition("#")[2]), begin_ns, end_ns


def _device_ns(record: RankRecord, host_ns: int) -> int:
    """The instant when the compute stream has done what was launched before `host_ns`, and not before `host_ns`."""
    stream = compute_stream(record)
    ends = (ran.end_ns for ran in record.works if ran.work.stream == stream and ran.call.begin_ns < host_ns)
    return max([host_ns, *ends])


def compute_stream(record: RankRecord) -> int | None:
    busy: Counter[int] = Counter()
    for ran in record.works:
        if ran.work.kind is Kind.COMPUTE:
            busy[ran.work.stream] += ran.end_ns - ran.start_ns
    return min(busy, key=lambda stream: (-busy[stream], stream), default=None)


def elementary(record: RankRecord, transfers: Meetings, begin_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    """Intervals from `begin_ns` to `end_ns` in which nothing begins or ends."""
    cuts = {begin_ns, end_ns}
    for ran in record.works:
        cuts |= {ran.start_ns, ran.end_ns, ran.call.begin_ns}
        if ran.work.group is not None:
            cuts.add(ran.end_ns - (transfers[ran.work.group.name, ran.position] or 0))
    on_host: list[OnHost] = [*record.ranges, *record.calls]
    for each in on_host:
        cuts |= {each.begin_ns, each.end_ns}
    return pairwise(sorted(cut for cut in cuts if begin_ns <= cut <= end_ns))


def owner(record: RankRecord, transfers: Meetings, at_ns: int) -> str:
    """Term that owns the instant."""
    running = [ran for ran in record.works if ran.start_ns <= at_ns < ran.end_ns]
    for kind in Kind:
        if of_kind := [ran for ran in running if ran.work.kind is kind]:
            latest = max(of_kind, key=lambda ran: (ran.start_ns, *_launch_order(ran)))
            return _term(latest, transfers, at_ns)
    if any(
        each.action.meaning is Meaning.EVALUATION and each.begin_ns <= at_ns < each.end_ns for each in record.ranges
    ):
        return EVALUATION
    coming = [ran for ran in record.works if ran.start_ns >= at_ns]
    if not coming:
        return "unattributed"
    awaited = min(coming, key=lambda ran: (ran.start_ns, *_launch_order(ran))).call
    done = [ran.end_ns for ran in record.works if ran.end_ns <= at_ns]
    if done and awaited.end_ns <= max(done):
        return KERNEL_WAIT
    if at_ns >= awaited.begin_ns:
        return LAUNCH_GAP
    activity = activity_at(record, awaited.thread, at_ns)
    return LAUNCH_GAP if activity is None else activity.value


def _launch_order(ran: Ran) -> tuple[int, int]:
    return ran.call.begin_ns, ran.call.correlation


def _term(ran: Ran, transfers: Meetings, at_ns: int) -> str:
    if Meaning.EVALUATION in ran.call.meanings:
        return EVALUATION
    if ran.work.kind is Kind.MEMORY:
        return "exposed_memory"
    if ran.work.group is None:
        return _phase(ran.call.meanings)
    transfer_ns = transfers[ran.work.group.name, ran.position]
    waits = transfer_ns is not None and at_ns < ran.end_ns - transfer_ns
    return f"exposed_{'wait' if waits else 'transfer'}[{ran.work.group.axis}]"


def _phase(meanings: Sequence[Meaning]) -> str:
    """Phase of a kernel that is launched within these ranges, outermost first."""
    phases = [meaning for meaning in meanings if meaning in PHASES]
    if phases:
        return phases[-1].value
    return Meaning.FORWARD.value if Meaning.OPERATOR in meanings else "other_compute"


def activity_at(record: RankRecord, thread: str, at_ns: int) -> Meaning | None:
    """The innermost activity of the thread: the one that begins last."""
    opened = activities_at(record, thread, at_ns)
    return opened[-1] if opened else None


def activities_at(record: RankRecord, thread: str, at_ns: int) -> list[Meaning]:
    """Activities that are open on the thread, outermost first."""
    opened = [(each.order, each.action.meaning) for each in _open(record.ranges, thread, at_ns)]
    opened += [(call.order, Meaning.SYNC) for call in _open(record.calls, thread, at_ns) if call.sync]
    in_order = [meaning for _, meaning in sorted(opened, key=lambda each: each[0])]
    return [meaning for meaning in in_order if meaning in ACTIVITIES]


Each = TypeVar("Each", bound=OnHost)


def _open(each_of: Sequence[Each], thread: str, at_ns: int) -> list[Each]:
    return [each for each in each_of if each.thread == thread and each.begin_ns <= at_ns < each.end_ns]


def hidden_waits(record: RankRecord, at_ns: int) -> Iterator[str]:
    """Activities of the launching threads while the device works, also those around another."""
    if any(ran.start_ns <= at_ns < ran.end_ns for ran in record.works):
        for thread in sorted({ran.call.thread for ran in record.works}):
            yield from {activity.value for activity in activities_at(record, thread, at_ns)}


def queues(record: RankRecord) -> dict[tuple[int, int], tuple[int, int]]:
    """Step and stream -> ns x works that wait, and ns in which none waits. A work waits from its call to its start."""
    result = {}
    for number, begin_ns, end_ns in steps(record):
        for stream in sorted({ran.work.stream for ran in record.works}):
            works = [ran for ran in record.works if ran.work.stream == stream]
            cuts = {begin_ns, end_ns, *(ns for ran in works for ns in (ran.call.begin_ns, ran.start_ns))}
            waited_ns = empty_ns = 0
            for start_ns, stop_ns in pairwise(sorted(cut for cut in cuts if begin_ns <= cut <= end_ns)):
                waiting = sum(ran.call.begin_ns <= start_ns < ran.start_ns for ran in works)
                waited_ns += waiting * (stop_ns - start_ns)
                empty_ns += 0 if waiting else stop_ns - start_ns
            result[number, stream] = waited_ns, empty_ns
    return result
