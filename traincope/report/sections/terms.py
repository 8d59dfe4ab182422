"""All terms of the ledger with their costs, and the causes within them."""

from collections.abc import Iterator, Mapping

from traincope.analysis import LossKind
from traincope.analysis.verdict.losses.term_causes import Basis
from traincope.report.document.costs import shows_costs
from traincope.report.schema import Cause, Cost, Document
from traincope.report.sections.forms import Form
from traincope.report.sections.losses import cost_heads
from traincope.report.sections.section import Number, On, Path, Section, Table, Term, Words, number, rows
from traincope.report.sections.source import Source

NAME, TITLE = "terms", "All terms"
MISSING = "Unknown: no complete step was recorded."
STEP_TIME, RANK_STEPS = ("ledger", "wall_ns"), ("ledger", "rank_steps")
CAUSES = "Causes within the terms"
NO_CAUSES = "No cause within a term is known."
WITHIN = "slices of a term do not overlap; the rest has no known cause"
MIN_OF_TERM = 0.01
"""Smallest share of its term of a cause in the table; JSON has all."""
MAX_NAMED_TERMS = 2
BASES: Mapping[str, str] = {
    Basis.PROPORTION: "estimate, in proportion",
    Basis.AT_PEAK: "lower bound, at peak",
    Basis.AT_MOST: "upper bound",
}
"""Basis of a cause -> its words in the table; others are printed by name."""
CAUSE_WORDS: Mapping[str, str] = {
    LossKind.EXPERT_PADDING: "expert padding",
    LossKind.REDUNDANT_COMPUTE: "redundant compute",
    LossKind.UNFUSED_KERNELS: "could be fused",
    LossKind.KERNEL_INEFFICIENCY: "below peak",
    LossKind.AMBIGUOUS_WAIT: "may be wait",
    LossKind.AWAITED_JOB: "for",
    LossKind.PART: "of it",
    LossKind.MESSAGE_IMBALANCE: "unequal messages",
    LossKind.CONTENTION: "contention",
    LossKind.LATE_RANK: "late",
    LossKind.BUBBLE_SCHEDULE: "",
    LossKind.BUBBLE_IMBALANCE: "",
    LossKind.BUBBLE_JITTER: "",
    LossKind.RECORDER: "recorder, at most",
}
"""Kind of a cause -> its words. Its subject follows, or is enough."""


def terms(source: Source) -> Section:
    ledger = source.document["ledger"]
    if ledger is None:
        return Section(name=NAME, title=TITLE, missing=MISSING)
    cost, took = ledger["cost"], [term for term, ratio in ledger["waterfall"].items() if ratio]
    table = Table(
        caption=TITLE,
        heads=("term", "share of step time", "ms per step", *(cost_heads(cost) if shows_costs(cost) else ())),
        rows=rows((*((Term(term), *numbers_of(cost, term)) for term in took), ("step", *numbers_of(cost)))),
        on=On.SCREEN,
    )
    return Section(name=NAME, title=TITLE, parts=(table,))


def numbers_of(cost: Cost, *terms: str) -> Iterator[Number]:
    """Share of step time, ms per step, and costs if they are shown: of the sum of `terms`, or of the whole step."""

    def number_of(*key: str, whole: str, form: Form, per: Path | None = None) -> Number:
        paths: tuple[Path, ...] = tuple(("ledger", *key, term) for term in terms)
        return Number(paths or (("ledger", *key[:-1], whole),), form, per)

    yield number_of("terms", whole="wall_ns", form="share", per=STEP_TIME)
    yield number_of("terms", whole="wall_ns", form="milliseconds", per=RANK_STEPS)
    if shows_costs(cost):
        yield number_of("cost", "rank_hours", whole="wall_rank_hours", form="hours")
        if cost["money"] is not None:
            yield number_of("cost", "money", whole="wall_money", form="money")


def causes(source: Source) -> Section:
    """The causes that matter to their term, in the order of the document."""
    found = rows(_causes(source.document))
    if not found:
        return Section(name="causes", title=CAUSES, missing=NO_CAUSES)
    table = Table(
        caption=CAUSES,
        heads=("term", "cause", "basis", "share of the term", "over all ranks"),
        rows=found,
        left=frozenset({0, 1, 2}),
        on=On.SCREEN,
    )
    return Section(name="causes", title=CAUSES, lead=WITHIN, parts=(table,))


def _causes(document: Document) -> Iterator[tuple[Words, ...]]:
    for at, of in enumerate(document["causes"]):
        for slot, cause in enumerate(of["causes"]):
            if abs(cause["ratio"] or 0.0) >= MIN_OF_TERM:
                path = ("causes", at, "causes", slot)
                yield (
                    " + ".join(of["terms"]) if len(of["terms"]) <= MAX_NAMED_TERMS else "step",
                    named_cause(cause),
                    BASES.get(cause["basis"], cause["basis"]),
                    number(*path, "ratio", form="share"),
                    number(*path, "ns", form="duration"),
                )


def named_cause(cause: Cause) -> str:
    """A cause in words, e.g. "contention: all_gather during tp" or "late: rank 3"."""
    words = CAUSE_WORDS.get(cause["kind"], cause["kind"].replace("_", " "))
    return ": ".join(filter(None, (words, cause["subject"])))
