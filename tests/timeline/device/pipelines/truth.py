"""Ledger of a pipelined program on the clocks of its GPUs, by DESIGN.md's definitions.

A stage is idle from the step's begin to the end of the slowest stage's last action, outside its own actions and all
other terms; stalls for messages count anywhere in the step. Replays of the orders split that time: with the mean of the
stages' median durations, with each stage's own, and with messages. The replay here is that of the analysis' own tests.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tests.analysis.pipeline.pipelines import Pipeline as Replay
from tests.timeline.device import projection
from tests.timeline.device.pipelines.programs import Orders, Pipeline
from tests.timeline.device.recorded import parsed
from tests.virtual_gpu.actions import Meaning, Program
from tests.virtual_gpu.machine import RankRecord, execute
from tests.virtual_gpu.truth import elementary, owner, steps, transfers_ns
from traincope.plan.pipeline.actions import Action

Ledgers = dict[int, dict[int, dict[str, int]]]
"""Rank -> step -> term -> ns, with `wall`."""
Links = Mapping[tuple[int, int], int]
"""Source rank and destination rank -> median time on the wire."""
UNATTRIBUTED, TRANSFER = "unattributed", "exposed_transfer[pp]"
BUBBLE = ("bubble.schedule", "bubble.imbalance", "bubble.jitter")


@dataclass(frozen=True, kw_only=True)
class _Sent(Replay):
    """A replay in which each link takes its own time."""

    links: Links

    def _earliest(self, action_: Action, starts: Mapping[Action, int]) -> int:
        source = self.source(action_)
        earliest = super()._earliest(action_, starts)
        if source is None:
            return earliest
        link = self._ranks[source.stage], self._ranks[action_.stage]
        return max(earliest, starts[source] + self.length(source) + self.links.get(link, 0))


@dataclass(frozen=True, kw_only=True)
class OneStep:
    """Begin, end, actions and owners of the time of one step of a rank."""

    begin_ns: int
    end_ns: int
    actions: Mapping[Action, tuple[int, int]]
    """Begin and end."""
    owners: tuple[tuple[int, int, str], ...]
    """Begin and end of consecutive pieces, and the term of each without the pipeline's."""


def ledgers(orders: Orders, ranks: Mapping[int, Mapping[int, OneStep]], links: Mapping[int, Links]) -> Ledgers:
    """Compute the ledgers of all ranks. `links`: of each step."""
    result: Ledgers = {rank: {} for rank in ranks}
    for number in next(iter(ranks.values())):
        shown = {rank: steps[number] for rank, steps in ranks.items()}
        idle = _idle(orders, shown, links[number])
        end_ns = max(end for each in shown.values() for _, end in each.actions.values())
        for rank, each in shown.items():
            terms, pool_ns = _terms(each, end_ns)
            parts = idle[rank]
            terms |= dict(zip(BUBBLE[:2], parts[:2], strict=True))
            terms[BUBBLE[2]] = pool_ns - sum(parts)
            terms[TRANSFER] = parts[2]
            result[rank][number] = {"wall": sum(terms.values())} | terms
    return result


def _terms(shown: OneStep, end_ns: int) -> tuple[dict[str, int], int]:
    """Terms outside of the pool, and the pool's ns."""
    terms: Counter[str] = Counter()
    pool_ns = 0
    cuts = {end_ns, *(ns for times in shown.actions.values() for ns in times)}
    for start, stop, term in shown.owners:
        for begin, end in pairwise(sorted({start, stop, *(cut for cut in cuts if start < cut < stop)})):
            acting = any(first <= begin < last for first, last in shown.actions.values())
            message = term in (TRANSFER, "exposed_wait[pp]")
            if message or (term == UNATTRIBUTED and not acting and end <= end_ns):
                pool_ns += end - begin
            else:
                terms[term] += end - begin
    return dict(terms), pool_ns


def _idle(orders: Orders, shown: Mapping[int, OneStep], links: Links) -> dict[int, tuple[int, int, int]]:
    """Rank -> idle time of the schedule, and what imbalance and messages add."""
    lengths: dict[tuple[str, int], list[int]] = defaultdict(list)
    for each in shown.values():
        for action, (begin, end) in each.actions.items():
            lengths[action.kind, action.stage].append(end - begin)
    own = {key: round(median(values)) for key, values in lengths.items()}
    kinds = {kind for kind, _ in own}
    means = {kind: [ns for (of, _), ns in own.items() if of == kind] for kind in kinds}
    even = {(kind, stage): round(sum(means[kind]) / len(means[kind])) for kind, stage in own}
    runs = [
        _Sent(orders=dict(orders), durations=durations, links=between)
        for durations, between in ((even, {}), (own, {}), (own, links))
    ]
    result = {}
    for rank, order in orders.items():
        idle = [run.end() - sum(run.length(action) for action in order) for run in runs]
        result[rank] = idle[0], idle[1] - idle[0], idle[2] - idle[1]
    return result


def by_marks(pipeline: Pipeline, program: Program) -> Ledgers:
    """Compute the ledger that marks can see of a padded program, with the true times of the messages."""
    ranks = {rank: marked_steps(program, rank) for rank in pipeline.orders}
    return ledgers(pipeline.orders, ranks, _true_links(program, {n: n for n in next(iter(ranks.values()))}))


def marked_steps(program: Program, rank: int) -> dict[int, OneStep]:
    own, host = projection.alone(program, rank), projection.performed(program, rank)
    result = {}
    for number, (begun, following) in enumerate(pairwise(host.steps)):
        begin_ns, end_ns = begun.begin_ns, following.begin_ns
        actions = {
            Action(*parsed(each.action)): (each.begin_ns, each.end_ns)
            for each in host.phases
            if each.action and begin_ns <= each.begin_ns < end_ns
        }
        owners = tuple(
            (start, stop, projection.owner(host, own.latency_ns, start, (begun, following)))
            for start, stop in projection.elementary(host, begin_ns, end_ns)
        )
        if number:
            result[number] = OneStep(begin_ns=begin_ns, end_ns=end_ns, actions=actions, owners=owners)
    return result


def by_kernels(pipeline: Pipeline, program: Program) -> Ledgers:
    """Compute the ledger of the kernels themselves, as a trace shows them."""
    records = execute(program)
    meetings = transfers_ns(records, frozenset())
    ranks = {}
    for record in records:
        ranks[record.rank] = {
            number: OneStep(
                begin_ns=begin_ns,
                end_ns=end_ns,
                actions=_kernels(record, begin_ns, end_ns),
                owners=tuple(
                    (start, stop, owner(record, meetings, start))
                    for start, stop in elementary(record, meetings, begin_ns, end_ns)
                ),
            )
            for number, begin_ns, end_ns in steps(record)
        }
    return ledgers(pipeline.orders, ranks, _true_links(program, {n: n for n in ranks[0]}))


def _kernels(record: RankRecord, begin_ns: int, end_ns: int) -> dict[Action, tuple[int, int]]:
    result = {}
    for opened in record.ranges:
        if opened.action.meaning is Meaning.ACTION:
            inside = [ran for ran in record.works if opened.begin_ns <= ran.call.begin_ns < opened.end_ns]
            begin, end = min(ran.start_ns for ran in inside), max(ran.end_ns for ran in inside)
            if begin_ns <= begin < end_ns:
                result[Action(*parsed(opened.action.name))] = begin, end
    return result


def _true_links(program: Program, numbers: Mapping[int, int]) -> dict[int, Links]:
    """Step -> link -> median time on the wire: from the later begin of its two kernels to their end."""
    records = execute(program)
    wire = transfers_ns(records, frozenset())
    links: dict[int, dict[tuple[int, int], list[int]]] = {number: defaultdict(list) for number in numbers}
    for record in records:
        for ran in record.works:
            if ran.work.group is None or ran.work.group.axis != "pp":
                continue
            number = next(
                int(opened.action.name.partition("#")[2])
                for opened in record.ranges
                if opened.action.meaning is Meaning.STEP and opened.order in ran.call.within
            )
            ranks = ran.work.group.ranks
            pairs = [ranks, ranks[::-1]] if ran.work.operation == "send_recv" else [ranks]
            for pair in pairs:
                if number in links and record.rank == pair[1]:
                    links[number][pair].append(wire[ran.work.group.name, ran.position] or 0)
    return {number: {pair: round(median(values)) for pair, values in of.items()} for number, of in links.items()}
