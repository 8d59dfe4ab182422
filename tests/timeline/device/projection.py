"""Ledger that marks on the compute stream can see of a program of the virtual GPU, by its definition.

Host and device of each rank are computed without the recorder, with an event where the recorder puts a mark. Every
instant of a step has one owner: a stall, the phase that began last, or, between phases, what the host did, if the
stream had nothing to do when the host queued the next mark.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.timeline.device.recorded import alone, parsed
from tests.virtual_gpu.actions import COMPUTE_STREAM, Action, Meaning, OnThread, Program, Range, RecordEvent, WaitEvent
from tests.virtual_gpu.machine import Host, Queued, execute
from tests.virtual_gpu.truth import transfers_ns

OUTERMOST = (Meaning.FORWARD, Meaning.EVALUATION, Meaning.RECOMPUTE)
"""Only the outermost call of a module is a phase."""
ACTIVITIES = (Meaning.DATA_WAIT, Meaning.CHECKPOINT_STALL, Meaning.GC)
MARKED = (
    *(*OUTERMOST, Meaning.BACKWARD, Meaning.OPTIMIZER, Meaning.DATA_WAIT, Meaning.CHECKPOINT_STALL),
    Meaning.ACTION,
)
UNATTRIBUTED, EVALUATION = "unattributed", Meaning.EVALUATION.value


@dataclass(slots=True, kw_only=True)
class _Marked:
    """A step, phase or stall between two marks."""

    term: str
    order: int
    queued_ns: int
    begin: Queued
    end: Queued | None = None
    collective: tuple[str, int] = ("", -1)
    """Group and position of the collective that a stall waits for."""
    action: str = ""
    """Name of an action of a pipeline."""

    @property
    def begin_ns(self) -> int:
        assert self.begin.end_ns is not None
        return self.begin.end_ns

    @property
    def end_ns(self) -> int:
        assert self.end is not None
        assert self.end.end_ns is not None
        return self.end.end_ns


class _MarkedHost(Host):
    """A host that marks its ranges as the recorder does."""

    def __init__(self, program: Program) -> None:
        super().__init__(0, program, {})
        self.steps: list[_Marked] = []
        self.phases: list[_Marked] = []
        self.activities: list[tuple[int, int, int, str]] = []
        """Order, begin and end of each on the host, and its term."""
        self._newest: dict[int, tuple[str, tuple[str, int]]] = {}
        """Stream -> axis, group and position of its newest collective."""
        self._followed: dict[str, tuple[str, tuple[str, int]]] = {}
        self._num_issued: Counter[str] = Counter()
        self._within: list[Meaning] = []
        self._num_opened = 0

    def perform(self, actions: tuple[Action, ...], thread: str = "main") -> Iterator[None]:
        for action in actions:
            match action:
                case OnThread():
                    yield from self._around(Meaning.BACKWARD, super().perform((action,), thread))
                case Range():
                    yield from self._marked(action, thread)
                case RecordEvent(event=name, stream=stream):
                    self._followed.pop(name, None)
                    if stream in self._newest:
                        self._followed[name] = self._newest[stream]
                    yield from super().perform((action,), thread)
                case WaitEvent(event=name, stream=stream) if stream == COMPUTE_STREAM and name in self._followed:
                    axis, collective = self._followed.pop(name)
                    stall = self._mark(f"exposed_transfer[{axis}]")
                    stall.collective = collective
                    yield from super().perform((action,), thread)
                    self._close(stall)
                case _:
                    yield from super().perform((action,), thread)

    def _marked(self, action: Range, thread: str) -> Iterator[None]:
        body = super().perform((action,), thread)
        if action.collective is not None and action.collective.group is not None:
            self.gpu.record(self.now_ns, COMPUTE_STREAM)
            group = action.collective.group
            self._newest[action.collective.stream] = group.axis, (group.name, self._num_issued[group.name])
            self._num_issued[group.name] += 1
        if action.meaning is Meaning.STEP:
            self.steps.append(self._mark("step", keep=False))
            yield from body
        elif action.meaning in (*MARKED, Meaning.GC) and action.meaning is not Meaning.BACKWARD:
            yield from self._around(action.meaning, body, name=action.name)
        else:
            yield from body

    def _around(self, meaning: Meaning, body: Iterator[None], *, name: str = "") -> Iterator[None]:
        inner = meaning in OUTERMOST and any(each in OUTERMOST for each in self._within_backward())
        inner |= meaning in (Meaning.CHECKPOINT_STALL, Meaning.GC) and meaning in self._within
        self._num_opened += 1
        order, begin_ns = self._num_opened, self.now_ns
        phase = self._mark(meaning.value) if meaning in MARKED and not inner else None
        self._within.append(meaning)
        yield from body
        self._within.pop()
        if phase is not None and meaning is Meaning.ACTION:
            phase.action, phase.term = name, "forward" if parsed(name)[0] == "F" else "backward"
        if phase is not None:
            self._close(phase)
        if meaning in ACTIVITIES and not inner:
            self.activities.append((order, begin_ns, self.now_ns, meaning.value))

    def _within_backward(self) -> list[Meaning]:
        """List the ranges that are open in the backward under way; all open ones without a backward."""
        if Meaning.BACKWARD not in self._within:
            return self._within
        return self._within[self._within.index(Meaning.BACKWARD) + 1 :]

    def _mark(self, term: str, *, keep: bool = True) -> _Marked:
        begun = self.gpu.record(self.now_ns, COMPUTE_STREAM)
        order = len(self.phases) + len(self.steps)
        marked = _Marked(term=term, order=order, queued_ns=self.now_ns, begin=begun)
        if keep:
            self.phases.append(marked)
        return marked

    def _close(self, marked: _Marked) -> None:
        marked.end = self.gpu.record(self.now_ns, COMPUTE_STREAM)


def projected(program: Program, rank: int) -> dict[int, dict[str, int]]:
    """Step -> term -> ns, with `wall`, of one rank of a padded program; without its first and its last step."""
    own, host = alone(program, rank), performed(program, rank)
    ledger = {}
    for number, (step, following) in enumerate(pairwise(host.steps)):
        terms: Counter[str] = Counter()
        for start_ns, stop_ns in elementary(host, step.begin_ns, following.begin_ns):
            terms[owner(host, own.latency_ns, start_ns, (step, following))] += stop_ns - start_ns
        evaluation_ns = terms.pop(EVALUATION, 0)
        wall_ns = following.begin_ns - step.begin_ns - evaluation_ns
        ledger[number] = {"wall": wall_ns} | dict(terms)
    return {number: terms for number, terms in ledger.items() if number}


def true_stalls(program: Program, rank: int) -> tuple[dict[str, int], int]:
    """Sum the stalls of one rank of a padded program without gaps: exposed wait and transfer, per axis, in ns, of the
    collectives that it waits for. Also return their number.
    """
    records = execute(program)
    transfers = transfers_ns(records, frozenset())
    ran = {(each.work.group.name, each.position): each for each in records[rank].works if each.work.group is not None}
    stalls = [phase for phase in performed(program, rank).phases if phase.collective in ran]
    sums: Counter[str] = Counter()
    for stall in stalls:
        each = ran[stall.collective]
        border_ns = each.end_ns - (transfers[stall.collective] or 0)
        axis = stall.term.removeprefix("exposed_transfer")
        sums[f"exposed_wait{axis}"] += _overlap(stall, each.start_ns, border_ns)
        sums[f"exposed_transfer{axis}"] += _overlap(stall, border_ns, each.end_ns)
    return dict(sums), len(stalls)


def _overlap(stall: _Marked, start_ns: int, end_ns: int) -> int:
    return max(min(stall.end_ns, end_ns) - max(stall.begin_ns, start_ns), 0)


def performed(program: Program, rank: int) -> _MarkedHost:
    own = alone(program, rank)
    host = _MarkedHost(own)
    for _ in host.perform(own.ranks[0]):
        raise AssertionError("the host of a single rank never waits for another")
    host.gpu.settle()
    return host


def elementary(host: _MarkedHost, begin_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    cuts = {begin_ns, end_ns}
    for phase in host.phases:
        cuts |= {phase.begin_ns, phase.end_ns}
    for _, start_ns, stop_ns, _ in host.activities:
        cuts |= {start_ns, stop_ns}
    return pairwise(sorted(cut for cut in cuts if begin_ns <= cut <= end_ns))


def owner(host: _MarkedHost, latency_ns: int, at_ns: int, step: tuple[_Marked, _Marked]) -> str:
    if _evaluates(host, at_ns, step):
        return EVALUATION
    within = [phase for phase in host.phases if phase.begin_ns <= at_ns < phase.end_ns]
    if within:
        return max(within, key=lambda phase: (phase.begin_ns, phase.order)).term
    coming = [mark for mark in (*host.phases, step[1]) if mark.begin_ns > at_ns]
    following = min(coming, key=lambda mark: (mark.begin_ns, mark.queued_ns))
    stall = following.term.startswith("exposed")
    if stall or following.begin_ns > following.queued_ns + latency_ns:
        return UNATTRIBUTED
    doing = [each for each in host.activities if each[1] <= at_ns < each[2]]
    return max(doing)[3] if doing else "launch_gap"


def _evaluates(host: _MarkedHost, at_ns: int, step: tuple[_Marked, _Marked]) -> bool:
    """Return whether the instant is in an evaluation, or between two of a step without training between them."""
    inside = [
        phase
        for phase in host.phases
        if phase.term == EVALUATION and step[0].begin_ns <= phase.begin_ns < step[1].begin_ns
    ]
    before = [phase for phase in inside if phase.begin_ns <= at_ns]
    if any(at_ns < phase.end_ns for phase in before):
        return True
    after = [phase for phase in inside if phase.begin_ns > at_ns]
    if not before or not after:
        return False
    gap = max(phase.end_ns for phase in before), min(phase.begin_ns for phase in after)
    training = ("forward", "backward", "recompute", "optimizer", "checkpoint_stall")
    return not any(
        phase.term in training and phase.begin_ns <= gap[1] and gap[0] <= phase.end_ns for phase in host.phases
    )
