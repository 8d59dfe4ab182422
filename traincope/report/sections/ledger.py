"""Where the time of the steps went: of the job, a stage or a rank, over the steps and over the ranks."""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence

from traincope.analysis import Analysis, RankLedger, Scope, mean_step_ns, waterfall_of
from traincope.analysis.attribution.stalls import WHY, AmbiguousWait
from traincope.analysis.attribution.terms import BUBBLE
from traincope.analysis.efficiency.utilization import AT_WORK
from traincope.report.document.costs import shows_costs
from traincope.report.schema import Cost, Document, Ledger, TermCauses
from traincope.report.sections.counted_steps import counted_steps
from traincope.report.sections.losses import losses
from traincope.report.sections.pipeline import NEGATIVE_JITTER
from traincope.report.sections.section import (
    Bars,
    Choice,
    Drawing,
    Lines,
    Link,
    Number,
    Row,
    Section,
    Term,
    Words,
    number,
    separated,
)
from traincope.report.sections.source import Source
from traincope.report.sections.terms import MISSING, RANK_STEPS, STEP_TIME, causes, named_cause, numbers_of, terms
from traincope.timeline import LedgerClock
from traincope.units import count, duration, money

NAME, TITLE = "ledger", "Where the time went"
IMPORTED = "The imported kernel traces have no marks of steps."
JOB = "job"
MIN_CAUSE, MIN_OF_TERM = 0.01, 0.2
"""Smallest share of step time, and of its term, of a cause that is shown below the term's bar."""
MIN_BAR = 0.005
"""Terms below this share of step time have one bar in a summary."""
OTHER = "other terms"


def ledger(source: Source) -> Section:
    document, of_steps = source.document, source.document["ledger"]
    if of_steps is None:
        return _no_steps(document)
    groups = scopes(source.analysis)
    ranks = ChainMap(*map(dict, groups))
    parts = (
        bars(of_steps, causes=document["causes"]),
        Choice(
            figure="waterfall",
            groups=tuple(map(tuple, groups)),
            of=lambda scope: _shares(source.analysis, ranks[scope]),
            caption=_caption(document),
            links="term",
        ),
        Lines(tuple(_notes(of_steps))),
    )
    within = [make(source) for make in (over_steps, over_ranks, terms, causes, losses)]
    known = tuple(each for each in within if each.missing is None)
    return Section(name=NAME, title=TITLE, lead=tuple(_lead(of_steps)), parts=parts, within=known)


def summary(document: Document) -> Section:
    """The same for the job alone, without small terms on a console, and without notes."""
    of_steps = document["ledger"]
    if of_steps is None:
        return _no_steps(document)
    shares = document["utilization"]["waterfall"] or of_steps["waterfall"]
    step_ns = of_steps["wall_ns"] / of_steps["rank_steps"]
    small = [term for term, ratio in of_steps["waterfall"].items() if ratio and abs(ratio) < MIN_BAR]
    drawn = Drawing(figure="waterfall", of=(shares, step_ns), caption=_caption(document), links="term")
    return Section(name=NAME, title=TITLE, lead=tuple(_lead(of_steps)), parts=(bars(of_steps, joined=small), drawn))


def over_steps(source: Source) -> Section:
    negative = "" if source.analysis.bubble is None else f"; below 0: {NEGATIVE_JITTER}"
    caption = f"Terms of each counted step, mean over ranks{negative}"
    drawn = Drawing(figure="steps", of=(source.analysis.ledger,), caption=caption, links="step")
    return Section(name="steps", title="Step by step", parts=(drawn,))


def over_ranks(source: Source) -> Section:
    drawn = Drawing(
        figure="shares",
        of=(source.analysis.ledger, _stages(source.analysis)),
        caption="Terms of each rank, mean over steps",
    )
    return Section(name="shares", title="Rank by rank", parts=(drawn,))


def _no_steps(document: Document) -> Section:
    if not document["run"]["imported"]:
        return Section(name=NAME, title=TITLE, missing=MISSING)
    gpus = Link("the time of the GPUs", page="hardware")
    return Section(name=NAME, title=TITLE, missing=IMPORTED, links=(gpus,))


def _lead(of_steps: Ledger) -> Iterator[Words]:
    yield "mean step "
    yield number(*STEP_TIME, form="duration", per=RANK_STEPS)
    yield f" over {count(len(of_steps['ranks']), 'rank')} and {counted_steps(of_steps)}"
    cost = of_steps["cost"]
    if of_steps["clock"] == LedgerClock.DEVICE:
        yield " on the GPUs' clocks"
    if shows_costs(cost):
        yield "; rank-hours of all"
    if (price := cost["price_per_gpu_hour"]) is not None:
        yield f", at {money(price, cost['currency'])} an hour"


def _caption(document: Document) -> str:
    known = document["utilization"]["mfu"] is not None
    to = "of the hardware's peak to MFU" if known else "to forward and backward: MFU is unknown"
    return f"From 100 % {to}; each bar is a term's share of step time"


def scopes(analysis: Analysis) -> tuple[Mapping[str, Sequence[RankLedger]], ...]:
    """The job, its stages, and its ranks if there are several: scope -> ledgers of its ranks with counted steps."""
    ranks = [rank for rank in analysis.ledger.ranks if rank.num_counted]
    stages: dict[int, list[RankLedger]] = {}
    for rank in ranks:
        if (stage := _stages(analysis)[rank.rank]) is not None:
            stages.setdefault(stage, []).append(rank)
    by_stage = {f"stage {stage}": stages[stage] for stage in sorted(stages)}
    return {JOB: ranks}, by_stage, {f"rank {rank.rank}": [rank] for rank in ranks if len(ranks) > 1}


def _stages(analysis: Analysis) -> Mapping[int, int | None]:
    return {rank.rank: rank.stage for rank in analysis.timeline.ranks}


def _shares(analysis: Analysis, ranks: Sequence[RankLedger]) -> tuple[Mapping[str, float | None], float]:
    """Shares of step time, down to MFU where it is known, and the mean step in ns."""
    chosen = frozenset(rank.rank for rank in ranks)
    return waterfall_of(analysis.timeline, analysis.ledger, analysis.utilization, ranks=chosen), mean_step_ns(ranks)


def bars(of_steps: Ledger, *, causes: Sequence[TermCauses] = (), joined: Sequence[str] = ()) -> Bars:
    """A row per term that took time, with its `causes` below it; several terms to be `joined` have one row."""
    cost, together = of_steps["cost"], joined if len(joined) > 1 else ()
    found: list[Row] = []
    for term, ratio in of_steps["waterfall"].items():
        if ratio and term not in together:
            found.append(_row(Term(term), cost, term))
        for at, each in enumerate(causes):
            if each["terms"][-1] == term and each["scope"] == Scope.STEPS:
                found += _causes(of_steps, at, each)
    if together:
        found.append(_row(Term(OTHER), cost, *together))
    return Bars(rows=tuple(found), whole=_row(Term("step"), cost))


def _row(name: Term, cost: Cost, *of: str) -> Row:
    share, *others = numbers_of(cost, *of)
    return name, share, *zip(others, (" ms", " h", f" {cost['currency']}"), strict=False)


def _causes(of_steps: Ledger, at: int, of: TermCauses) -> Iterator[Row]:
    """The causes that matter to a term. Those of the bubble are in the table of the pipeline."""
    whole = sum(of_steps["waterfall"].get(term) or 0.0 for term in of["terms"])
    both = " (fwd+bwd)" if tuple(of["terms"]) == AT_WORK else ""
    for slot, cause in enumerate(() if of["terms"][-1] in BUBBLE else of["causes"]):
        ratio = cause["ratio"] or 0.0
        if ratio >= MIN_OF_TERM and whole * ratio >= MIN_CAUSE:
            ns = ("causes", at, "causes", slot, "ns")
            per_step = number(*ns, form="milliseconds", per=RANK_STEPS)
            yield named_cause(cause) + both, number(*ns, form="share", per=STEP_TIME), (per_step, " ms")


def _notes(of_steps: Ledger) -> Iterator[Words]:
    """Evaluation, stalls of GPUs, terms that are not measured, ambiguous waits."""
    if of_steps["evaluation_ns"]:
        per_rank = duration(of_steps["evaluation_ns"] / len(of_steps["ranks"]))
        of_run = number("ledger", "evaluation_ratio", form="share")
        yield f"evaluation, outside the steps: {per_rank} per rank, ", of_run, " since the first step"
    if of_steps["device_stalls"] is not None:
        yield _on_device(of_steps)
    if of_steps["host_hidden_wait"]:
        hidden = ((f"{term} ", _per_step("host_hidden_wait", term)) for term in of_steps["host_hidden_wait"])
        yield "hidden by the GPUs' work, so in no term, per step: ", separated(hidden, ", ")
    if of_steps["run_ahead"] is not None:
        yield (
            "measured by marks on the GPUs' streams, so idle time within a phase is part of the phase; the hosts run ",
            number("ledger", "run_ahead", "median_ns", form="duration"),
            " ahead (median); after phases with ",
            number("ledger", "run_ahead", "empty_ratio", form="share"),
            " of step time the GPUs had nothing to do",
        )
    if unseen := [term for term, ns in of_steps["terms"].items() if ns is None]:
        yield f"not measured, so part of {_contains(of_steps, unseen)}: {', '.join(unseen)}"
    for at, part in enumerate(of_steps["ambiguous_waits"]):
        why = WHY[AmbiguousWait(part["reason"])]
        yield _per_step("ambiguous_waits", at, "ns"), f" per step of transfer on {part['axis']} may be wait: {why}"


def _per_step(*key: str | int) -> Number:
    return number("ledger", *key, form="duration", per=RANK_STEPS)


def _on_device(of_steps: Ledger) -> Words:
    """Stalls that the GPUs measured. The ledger's exposed communication is measured on the host, with a reason."""
    because = "" if of_steps["host_clock_reason"] is None else f", because {of_steps['host_clock_reason']}"
    host = f"the terms are measured on the host, which queues work ahead of its GPUs{because}; "
    if not of_steps["device_stalls"]:
        return f"{host}no stall of the GPUs' compute streams for communication was recorded"
    each = (_stall(at, stall["axis"]) for at, stall in enumerate(of_steps["device_stalls"]))
    return f"{host}the GPUs' compute streams stalled for communication, per step: ", separated(each, ", ")


def _stall(at: int, axis: str) -> Words:
    ratio = number("ledger", "device_stalls", at, "ratio", form="share")
    return f"{axis} ", _per_step("device_stalls", at, "total_ns"), " (", ratio, ")"


def _contains(of_steps: Ledger, unseen: Sequence[str]) -> str:
    """The terms that contain the terms that no rank measured."""
    if of_steps["run_ahead"] is not None:
        return "a phase, launch_gap or unattributed"
    by_launches = of_steps["clock"] == LedgerClock.DEVICE and "launch_gap" not in unseen
    return "launch_gap" if by_launches else "unattributed"
