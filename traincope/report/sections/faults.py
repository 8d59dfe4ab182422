"""Faults: every fault and event of the job by its time; a console lists the first of each kind."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Literal, TypeAlias

from traincope.analysis import Analysis, FaultKind
from traincope.analysis.faults.logbooks import DAY, NO_TIME
from traincope.report.schema import Document, Fault
from traincope.report.sections import section as data
from traincope.report.sections.forms import across_hosts
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.section import On, Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import MISSING, count, duration, numbers

Listed: TypeAlias = tuple[int, Fault]
"""A fault and its position in the document."""

NAME, TITLE = "faults", "Faults"
NOTHING = "No fault, checkpoint, evaluation or event was recorded."
CAPTION = "Faults and events by time"
OF_A_LOGBOOK = ("at",)
"""Head of the column that says when; a recorded job has more, which also say where."""
MAX_PER_KIND = 3
"""Further faults of one kind are counted on a console, not listed."""
MAX_MARKS = 5
"""If a run has more marks than this, a console lists no mark."""
MAX_ROWS = 200
"""Rows of a page, those that went wrong before the events; JSON has all."""
MAX_LINKED_RANKS = 8


def faults(source: Source) -> Section:
    analysis, document = source.analysis, source.document
    listed, logbook, heads = list(enumerate(document["faults"])), is_logbook(document), _heads(document)
    if not listed:
        return Section(name=NAME, title=TITLE, missing=NOTHING)
    attempts = () if analysis.goodput is None else analysis.goodput.attempts
    place = partial(_place, heads=heads, began_ns=job_ns(analysis)[0], attempt=document["run"]["attempt"])
    drawn = data.Drawing(
        figure="happened",
        of=(analysis.faults, *job_ns(analysis), attempts, analysis.timeline.run.logbook),
        caption=f"Faults in red and other events in grey{across_hosts(analysis.timeline.clocks)}",
    )
    return Section(
        name=NAME,
        title=TITLE,
        lead=_order(document),
        parts=(
            data.Lines((_counts(document["faults"]),), on=On.SCREEN),
            *([drawn] if any(fault["timed"] for _, fault in listed) else ()),
            Table(
                caption=CAPTION,
                heads=(*heads, ""),
                rows=rows((*place(*each), _sentence(each[1])) for each in (listed if logbook else _chosen(listed))),
                left=frozenset({0, 1} if logbook else {len(heads)}),
                wraps=True,
                on=On.CONSOLE,
            ),
            data.Lines(() if logbook else tuple(_omitted(document)), on=On.CONSOLE),
            Table(
                caption=CAPTION,
                heads=(*heads, "kind", "event", "evidence", "duration"),
                rows=rows((*place(*each), *_event(*each)) for each in _on_screens(listed)),
                left=frozenset(range(len(heads), len(heads) + 3)),
                on=On.SCREEN,
            ),
        ),
    )


def job_ns(analysis: Analysis) -> tuple[int, int]:
    """Instants of the job's first record, and of its end or its last fault; of a logbook, of first and last entry."""
    timed = [fault.at_ns for fault in analysis.faults if fault.timed]
    began_ns = min([analysis.began_ns, *(timed if analysis.timeline.run.logbook is not None else ())])
    return began_ns, max([analysis.end_ns or began_ns, *timed])


def real_faults(document: Document) -> list[Fault]:
    """Faults that are neither marks nor ends without a record."""
    return [fault for fault in document["faults"] if not fault["mark"] and fault["kind"] != FaultKind.NO_END]


def step_of(fault: Fault) -> str:
    """The training's own number of the step; of an attempt whose begin is unknown, its own. Empty without a step."""
    step = fault[_step(fault)]
    return "" if step is None else f"{step:,}"


def _step(fault: Fault) -> Literal["step", "training_step"]:
    return "step" if fault["training_step"] is None else "training_step"


def _order(document: Document) -> str:
    if is_logbook(document):
        return "entries of the list, by time (UTC)"
    of_the_training = any(fault["training_step"] is not None for fault in document["faults"])
    return f"by time since the first record{'; steps as the training counts them' if of_the_training else ''}"


def _counts(listed: Sequence[Fault]) -> str:
    marks, no_ends = sum(fault["mark"] for fault in listed), sum(fault["kind"] == FaultKind.NO_END for fault in listed)
    unknown = f", {count(no_ends, 'rank')} without a recorded end" if no_ends else ""
    cut = f"; {MAX_ROWS} of {len(listed):,} in the table, the first that went wrong" if len(listed) > MAX_ROWS else ""
    return f"{count(len(listed) - marks - no_ends, 'fault')}, {count(marks, 'event')}{unknown}{cut}"


def _heads(document: Document) -> tuple[str, ...]:
    attempts = {fault["attempt"] for fault in document["faults"] if fault["kind"] != FaultKind.NO_END}
    attempt = ("attempt",) if len(attempts) > 1 else ()
    return OF_A_LOGBOOK if is_logbook(document) else ("after", *attempt, "step", "rank")


def _place(at: int, fault: Fault, *, heads: Sequence[str], began_ns: int, attempt: int) -> Iterator[Words]:
    """Cells below `heads`. The timeline that a link opens is that of one attempt."""
    if heads == OF_A_LOGBOOK:
        yield _date(fault)
        return
    after, ranks = duration(fault["at_ns"] - began_ns), tuple(fault["ranks"][:MAX_LINKED_RANKS])
    drawn = fault["attempt"] in (None, attempt)
    yield data.Link(after, "timeline", at_ns=fault["at_ns"], ranks=ranks) if drawn else after
    if "attempt" in heads:
        yield number("faults", at, "attempt", form="count")
    yield number("faults", at, _step(fault), form="count")
    yield numbers(fault["ranks"]) or "all"


def _on_screens(listed: Sequence[Listed]) -> list[Listed]:
    return sorted(sorted(listed, key=lambda each: each[1]["mark"])[:MAX_ROWS], key=lambda each: each[0])


def _event(at: int, fault: Fault) -> Iterator[Words]:
    yield data.Kind(fault["kind"])
    yield _weighed(fault, fault["what"])
    yield _evidence(fault)
    yield number("faults", at, "lasted_ns", form="duration")


def _chosen(listed: Sequence[Listed]) -> Iterator[Listed]:
    """The first faults of each kind, all ends that follow another end as one, and marks if they are few.

    RECORDING has the ends without a record.
    """
    few = sum(fault["mark"] for _, fault in listed) <= MAX_MARKS
    counts: Counter[str] = Counter()
    followers = [fault for _, fault in listed if fault["follows"]]
    for at, fault in listed:
        if fault["follows"]:
            if fault is followers[0]:
                yield at, _merged(followers)
            continue
        counts[fault["kind"]] += 1
        if few if fault["mark"] else counts[fault["kind"]] <= MAX_PER_KIND and fault["kind"] != FaultKind.NO_END:
            yield at, fault


def _omitted(document: Document) -> Iterator[str]:
    counted = Counter(fault["kind"] for fault in real_faults(document) if not fault["follows"])
    for kind, number_of in counted.items():
        if number_of > MAX_PER_KIND:
            yield f"{count(number_of - MAX_PER_KIND)} more: {kind.replace('_', ' ')} (see --format json)"


def _merged(followers: Sequence[Fault]) -> Fault:
    """One line for all ends that followed, most likely because of, the first end."""
    how = Counter(fault["what"].partition(" in ")[0] for fault in followers)
    listed = ", ".join(f"{what} ({number})" if len(how) > 1 else what for what, number in how.most_common(MAX_PER_KIND))
    ranks = sorted(rank for fault in followers for rank in fault["ranks"])
    return {**followers[0], "ranks": ranks, "what": f"ended after that: {listed}", "evidence": "", "mark": False}


def _sentence(fault: Fault) -> Words:
    lasted = f", {duration(fault['lasted_ns'])}" if fault["mark"] and fault["lasted_ns"] is not None else ""
    return _weighed(fault, "; ".join(filter(None, (fault["what"] + lasted, _evidence(fault)))))


def _weighed(fault: Fault, words: str) -> Words:
    if fault["mark"]:
        return data.Aside(words)
    return words if fault["follows"] or fault["kind"] == FaultKind.NO_END else data.Alarm(words)


def _evidence(fault: Fault) -> str:
    """Without remarks about its date, which `_date` shows."""
    return "; ".join(part for part in fault["evidence"].split("; ") if part not in (DAY, NO_TIME))


def _date(fault: Fault) -> str:
    """Day and minute of an entry of a logbook, as far as the list has them."""
    if not fault["timed"]:
        return MISSING
    moment = datetime.fromtimestamp(fault["at_ns"] / 1e9, tz=UTC)
    return f"{moment:%Y-%m-%d}" if DAY in fault["evidence"] else f"{moment:%Y-%m-%d %H:%M}"
