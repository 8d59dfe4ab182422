"""Cause of a late rank: the tests of CAUSES in their order. The first that explains enough decides the advice.

docs/understand/causes.md lists the same order for people.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from traincope.analysis.attribution.terms import COMPUTE, UNATTRIBUTED, is_part
from traincope.analysis.efficiency.counted_flops import CountedFlops, counted_flops
from traincope.analysis.faults.slow_code import SampledWindow, SlowCode, line_within
from traincope.analysis.ledger.busy_threads import busy_thread
from traincope.analysis.ledger.debug_tools import debugged_ranks
from traincope.analysis.ledger.host_shortages import bound_apart
from traincope.analysis.stragglers.own_work import place
from traincope.analysis.stragglers.stragglers import Straggler, Stragglers
from traincope.analysis.verdict.losses.debugging import turn_off, with_tools
from traincope.analysis.verdict.losses.host_losses import (
    HOST_LOSSES,
    MADE_HERE,
    OTHER_PROCESS,
    host_advice,
    loads_itself,
)
from traincope.analysis.verdict.losses.slow_links import ADVICE as LINK_ADVICE
from traincope.analysis.verdict.losses.slow_links import LinkFaults, shown
from traincope.events import Work
from traincope.timeline import Timeline
from traincope.units import flops, numbers

SHARE = 0.5
"""Smallest share of the lateness that a cause must explain. Ours."""
HELD = 0.9
"""Smallest part of the time without the interpreter in which the thread that holds it must be active."""
EARLY_SHARE = 0.2
"""The same for a line of the first steps, in which most of the rank's longer time was in it: a lateness may grow."""

WAITS = {
    "data_wait": (
        "it waits for its data",
        "Compare that rank's data shard, file system and number of DataLoader workers with the other ranks'.",
    ),
    "gc": ("it collects garbage", HOST_LOSSES["gc"][1]),
    "checkpoint_stall": ("it saves or loads checkpoints", HOST_LOSSES["checkpoint_stall"][1]),
    "compile": ("it compiles", HOST_LOSSES["compile"][1]),
}
"""Ledger term of a straggler's longer work -> (what the rank does, advice)."""
BALANCE_TOKENS = (
    "Give every rank as many tokens (pack or bucket sequences by length, batches of equal size), layers and experts"
)
BALANCE_ATTENTION = (
    "Balance the products that depend on the position or the length: split sequences for context parallelism in zigzag "
    "or striped chunks, and batches by squared lengths"
)
OWN_CODE = "Let every rank do a part of this work, do it less often, or move it to another thread or process"
LACKS_CORE = "Find what else runs on its cores (`pidstat -t 1` on its host). Give each rank cores of its own"
FEWER_THREADS = ", and no more threads than cores (OMP_NUM_THREADS)"
LACKS_MEMORY = (
    "Free memory on its host (`free -h`): its pages come back from a disk. Also look at data that is read through mmap."
)
SLOW_CLOCKS = "Check power and cooling of that GPU (nvidia-smi -q), and replace it if its clocks stay low."
UNKNOWN_WORK = (
    "Look for work that only this rank does in that phase (hooks, logging, longer inputs), for other processes on its "
    "cores, and for slower clocks of its GPU (nvidia-smi -q)."
)
UNCOVERED = (
    "no probe covers what it does",
    "Wrap work that only this rank does (data, logging, metrics) in traincope.span(), and stop other jobs on its host.",
)
PARTS = {
    "generate": "Cap the length of its samples, or spread long prompts over the ranks.",
    "reward": "Give every rank as many samples to score, or score them in other processes while the step goes on.",
    "environment": "Run its environments in other processes, or end those that take too long.",
}
"""Part of a step that is not training -> advice for a rank whose part takes longer."""
OTHER_PART = "Look at what only this rank does in that part of its steps."
SAMPLE = "`traincope profile RUN --stacks {rank} {peer}` names the line while it trains. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known about late ranks beyond the ledger."""

    timeline: Timeline
    stragglers: Stragglers
    windows: Sequence[SampledWindow] = ()
    clocks: Mapping[int, str]
    """Rank -> evidence that its GPU's clocks were slow."""
    links: LinkFaults

    def peers(self, rank: int) -> list[int]:
        """Ranks of its stage, on the same mesh axes, that are not late."""
        places = {each.rank: place(each) for each in self.timeline.ranks}
        late = {straggler.rank for straggler in self.stragglers.named}
        return [other for other, found in places.items() if found == places[rank] and other not in late]

    def slow_line(self, straggler: Straggler) -> SlowCode | None:
        """The line in which its stacks were most above its peers'.

        Early samples count for a rank that is late from the beginning, by what they show.
        """
        from_the_beginning = straggler.pattern.first_step is None
        found = [
            code
            for window in self.windows
            for code in window.slow
            if code.rank == straggler.rank
            and (not window.early or (from_the_beginning and _explains(code, straggler, early=True)))
        ]
        return max(found, key=lambda code: code.ns - code.peers_ns, default=None)

    def is_early(self, code: SlowCode) -> bool:
        return any(window.early and code in window.slow for window in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCause:
    """Cause of a lateness: what was seen, and what to do."""

    evidence: str
    advice: str


def is_shown(straggler: Straggler, evidence: Evidence) -> bool:
    """Return whether evidence other than times shows why it is late. What it waits for, and a core that it lacks, are
    the lateness itself, which may be noise. A link of its host need not be what makes it late.
    """
    return any(test(straggler, evidence) is not None for test in CAUSES if test not in (_awaited, _host, _link))


def _explains(code: SlowCode, straggler: Straggler, *, early: bool) -> bool:
    """True if the line takes enough of the lateness; `early`: or of that of the first steps, if it grew since."""
    explained = (code.ns - code.peers_ns) / max(straggler.late_ns, 1)
    grew = early and code.excess_ratio is not None and code.excess_ratio >= SHARE
    return explained >= (EARLY_SHARE if grew else SHARE)


def late_cause(straggler: Straggler, evidence: Evidence) -> LateCause:
    """Return the first cause that explains the lateness. A line that its stacks show is in the evidence in any case."""
    found = next((cause for test in CAUSES if (cause := test(straggler, evidence)) is not None), None)
    line = evidence.slow_line(straggler)
    shown = _stood(straggler, evidence) if line is None else where(line)
    if found is None:
        found = _unknown(straggler, evidence, sampled=bool(shown))
    if shown in found.evidence:
        return found
    return LateCause(evidence="; ".join(filter(None, (found.evidence, shown))), advice=found.advice)


def stood_at(timeline: Timeline, rank: int, term: str, steps: Sequence[int]) -> str:
    """Call, line and function in which a rank's samples of these steps stand within a term; empty without them."""
    records = next((each for each in timeline.run.ranks if each.rank == rank), None)
    line = None if records is None else line_within(records, term, steps)
    if line is None:
        return ""
    return f"{f'{line.called} at ' if line.called else ''}{line.site} ({line.function})"


def where(code: SlowCode) -> str:
    """Return `its stacks show 60.1 ms a step in time.sleep at train.py:31 (Block.forward), the others' 0.0 ms`."""
    called = f"{code.line.called} at " if code.line.called else ""
    return (
        f"its stacks show {code.ns / 1e6:.1f} ms a step in {called}{code.line.site} ({code.line.function}), "
        f"the others' {code.peers_ns / 1e6:.1f} ms"
    )


def _stood(straggler: Straggler, evidence: Evidence) -> str:
    """Say where its stacks show work that no probe covers, though they are too few to compare with its peers'."""
    if straggler.cause != UNATTRIBUTED:
        return ""
    steps = [step.number for rank in evidence.timeline.ranks if rank.rank == straggler.rank for step in rank.steps]
    line = stood_at(evidence.timeline, straggler.rank, UNATTRIBUTED, steps)
    return f"its stacks show it in {line}" if line else ""


def _more_work(straggler: Straggler, evidence: Evidence) -> LateCause | None:
    """More FLOPs than its peers, in proportion to its longer compute."""
    if straggler.cause not in (*COMPUTE, UNATTRIBUTED):
        return None
    timelines = {rank.rank: rank for rank in evidence.timeline.ranks}
    own = counted_flops(timelines[straggler.rank])
    others = [each for rank in evidence.peers(straggler.rank) if (each := counted_flops(timelines[rank])) is not None]
    if own is None or not others:
        return None
    own_flops, peer_flops = _executed(own), float(median(map(_executed, others)))
    own_ns, peer_ns = (sum(getattr(term, name) for term in straggler.terms) for name in ("own_ns", "peers_ns"))
    if not peer_flops or (own_flops / peer_flops - 1) * peer_ns < SHARE * (own_ns - peer_ns):
        return None
    own_tokens, peer_tokens = _implied(own), float(median(map(_implied, others)))
    by_tokens = own_tokens - peer_tokens >= SHARE * (own_flops - peer_flops) * (peer_tokens / peer_flops)
    known = bool(own_tokens and peer_tokens)
    tokens = ""
    if known:
        ratio = f"{own_tokens / peer_tokens:.2f} times" if by_tokens else "equal to"
        tokens = f"; its tokens x parameters are {ratio} theirs"
    return LateCause(
        evidence=f"it has more work: {flops(own_flops)} a step, the others {flops(peer_flops)}{tokens}",
        advice=BALANCE_TOKENS if by_tokens or not known else BALANCE_ATTENTION,
    )


def _executed(counted: CountedFlops) -> float:
    return sum(counted.executed().values())


def _implied(counted: CountedFlops) -> float:
    """FLOPs that follow from parameters and tokens alone."""
    return sum(count for (_, work, _), count in counted.flops.items() if work is Work.IMPLIED)


def _debugged(straggler: Straggler, evidence: Evidence) -> LateCause | None:
    """Tools that look into its work, and not into its peers'. Lengths of steps show their cost, as all ranks wait.

    A tool of unknown cost is not the cause of a wait, or of work that only this rank does.
    """
    tools = {each.rank: each for each in debugged_ranks(evidence.timeline)}
    own, peers = tools.get(straggler.rank), evidence.peers(straggler.rank)
    if (
        own is None
        or not peers
        or 2 * median(tools[rank].ratio if rank in tools else 0.0 for rank in peers) > own.ratio
    ):
        return None
    if own.cost_ns is None:
        line = evidence.slow_line(straggler)
        if straggler.cause in WAITS or (line is not None and line.is_its_own):
            return None
    elif own.cost_ns < SHARE * straggler.late_ns:
        return None
    return LateCause(evidence=with_tools(own), advice=turn_off(own))


def _awaited(straggler: Straggler, evidence: Evidence) -> LateCause | None:
    """Data, saves, collections or compilations."""
    if straggler.cause not in WAITS:
        return None
    does, advice = WAITS[straggler.cause]
    own = [rank for rank in evidence.timeline.ranks if rank.rank == straggler.rank]
    if straggler.cause == "data_wait" and loads_itself(own):
        does = f"{does}; {MADE_HERE}"
    if straggler.cause in HOST_LOSSES:
        advice = host_advice(straggler.cause, evidence.timeline, (straggler.rank,))
    return LateCause(evidence=does, advice=advice)


def _own_code(straggler: Straggler, evidence: Evidence) -> LateCause | None:
    """A line in which its Python stands, and its peers' does not. A line in which all stand may only run slower."""
    line = evidence.slow_line(straggler)
    if line is None or not line.is_its_own or not _explains(line, straggler, early=evidence.is_early(line)):
        return None
    return LateCause(evidence=where(line), advice=OWN_CODE)


def _other_thread(straggler: Straggler, evidence: Evidence) -> LateCause | None:
    """Another Python thread is active as long as the training thread, in most of its lateness, neither runs nor lacks a
    core. Beside a thread with little work, or one that its peers have too, a rank stands still for another reason.
    """
    usage, other = straggler.usage, busy_thread(evidence.timeline, straggler.rank)
    if usage is None or usage.cpu_ns is None or usage.peers_cpu_ns is None or other is None:
        return None
    threads = [busy_thread(evidence.timeline, rank) for rank in evidence.peers(straggler.rank)]
    if 2 * median([thread.ratio if thread is not None else 0.0 for thread in threads] or [0.0]) > other.ratio:
        return None
    ran_ns = max(usage.cpu_ns - usage.peers_cpu_ns, 0.0)
    waited_ns = max(usage.core_wait_ns - usage.peers_core_wait_ns, 0.0)
    stopped_ns = straggler.late_ns - ran_ns - waited_ns
    lengths_ns = [
        step.end_ns - step.start_ns
        for rank in evidence.timeline.ranks
        if rank.rank == straggler.rank
        for step in rank.steps
    ]
    if stopped_ns < SHARE * straggler.late_ns or other.ratio * mean(lengths_ns) < HELD * stopped_ns:
        return None
    return LateCause(
        evidence=(
            f"in {stopped_ns / 1e6:.1f} ms of that, its training thread neither runs nor waits for a core, while "
            f"{other.phrase}: in Python, only the thread that holds the GIL runs"
        ),
        advice=OTHER_PROCESS,
    )


def _host(straggler: Straggler, evidence: Evidence) -> LateCause | None:
    """Cores or memory that its thread lacks, by the kernel's counts."""
    usage = straggler.usage
    if usage is not None and straggler.lacks_core:
        cores = bound_apart(evidence.timeline, straggler.rank, evidence.peers(straggler.rank))
        allowed = f"; it is bound to {numbers(sorted(cores), 'core')}, and each of the others may use another one"
        one_thread = evidence.timeline.run.info.environment.get("OMP_NUM_THREADS") == "1"
        return LateCause(
            evidence=(
                f"its thread waits {usage.core_wait_ns / 1e6:.1f} ms a step for a core, "
                f"the others' {usage.peers_core_wait_ns / 1e6:.1f} ms{allowed * bool(cores)}"
            ),
            advice=f"{LACKS_CORE}{'' if one_thread else FEWER_THREADS}.",
        )
    if usage is not None and straggler.lacks_memory:
        return LateCause(
            evidence=(
                f"its thread waits for {usage.major_faults:,.0f} pages a step from a disk, "
                f"the others' for {usage.peers_major_faults:,.0f}"
            ),
            advice=LACKS_MEMORY,
        )
    return None


def _gpu(straggler: Straggler, evidence: Evidence) -> LateCause | None:
    """A clock of its GPU that is slower than the others', where its compute is longer."""
    clocks = evidence.clocks.get(straggler.rank)
    return None if clocks is None else LateCause(evidence=clocks, advice=SLOW_CLOCKS)


def _link(straggler: Straggler, evidence: Evidence) -> LateCause | None:
    """Faults of links that it uses, and its peers do not: those of its host, or of its GPU."""
    faults = evidence.links.of_ranks((straggler.rank,), peers=evidence.peers(straggler.rank))
    if not faults:
        return None
    return LateCause(evidence=f"perhaps by a link: {shown(faults)}", advice=f"{LINK_ADVICE[faults[0].kind]}.")


CAUSES: tuple[Callable[[Straggler, Evidence], LateCause | None], ...] = (
    _more_work,
    _debugged,
    _awaited,
    _other_thread,
    _own_code,
    _host,
    _gpu,
    _link,
)
"""The order of causes. A thread that waits for the GIL shows a line of its own, which is not to blame."""


def _unknown(straggler: Straggler, evidence: Evidence, *, sampled: bool) -> LateCause:
    does, advice = UNCOVERED if straggler.cause == UNATTRIBUTED else ("", UNKNOWN_WORK)
    if is_part(straggler.cause):
        advice = PARTS.get(straggler.cause, OTHER_PART)
    peers = evidence.peers(straggler.rank)
    unasked = sampled or not peers or evidence.timeline.run.info.imported
    sample = "" if unasked else SAMPLE.format(rank=straggler.rank, peer=peers[0])
    return LateCause(evidence=does, advice=sample + advice)
