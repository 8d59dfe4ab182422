"""FAULTS: one line per fault, ordered by time, before all other sections."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from traincope.analysis import Analysis, FaultKind
from traincope.analysis.faults.logbooks import DAY, NO_TIME
from traincope.lines import text
from traincope.palette import SEVERE
from traincope.report.schema import Document, Fault
from traincope.report.sections.reliability import is_logbook
from traincope.units import MISSING, count, duration, numbers

MAX_PER_KIND = 3
"""Further faults of one kind are counted, not listed; JSON has all."""
MAX_MARKS = 5
"""If a run has more marks than this, no mark is listed."""


def faults(document: Document, analysis: Analysis) -> Iterator[RenderableType] | None:
    """The section, or None if the run has no fault; marks alone make no section."""
    listed = [fault for fault in document["faults"] if fault["kind"] != FaultKind.NO_END]
    if all(fault["mark"] for fault in listed):
        return None
    return _section(listed, since_ns=None if is_logbook(document) else began_ns(analysis))


def began_ns(analysis: Analysis) -> int:
    """Wall clock of the job's first record, over all attempts that can be read."""
    attempts = () if analysis.goodput is None else analysis.goodput.attempts
    return min([analysis.timeline.run.info.started_wall_ns, *(attempt.began_ns for attempt in attempts)])


def _section(listed: Sequence[Fault], *, since_ns: int | None) -> Iterator[RenderableType]:
    """`since_ns`: begin of the run. None: of a logbook, whose entries have dates, and are all shown."""
    if since_ns is None:
        yield _head("entries of the list, by time (UTC)")
        yield _entries(listed)
        return
    several = len({fault["attempt"] for fault in listed}) > 1
    of_the_training = "; steps as the training counts them" if counts_as_training(listed) else ""
    yield _head(f"by time since the start of the run{of_the_training}")
    rows = _table("    after", *(["attempt"] if several else []), "step", "rank")
    for fault in _chosen(listed):
        when = f"    {duration(max(fault['at_ns'] - since_ns, 0))}"
        attempt = [MISSING if fault["attempt"] is None else str(fault["attempt"])] if several else []
        style = "dim" if fault["mark"] else "" if fault["follows"] else SEVERE
        ranks = numbers(fault["ranks"]) or "all"
        rows.add_row(when, *attempt, step_of(fault) or MISSING, ranks, text(_sentence(fault)), style=style)
    for line in _omitted(listed):
        rows.add_row(*([""] * (4 if several else 3)), text(line), style="dim")
    yield rows


def _head(order: str) -> Text:
    return Text("FAULTS", style="bold").append(f"  {order}", style="not bold dim")


def _table(*heads: str) -> Table:
    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in heads:
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("", ratio=1, overflow="fold")
    return rows


def _entries(listed: Sequence[Fault]) -> Table:
    rows = _table("    at")
    rows.columns[0].justify = "left"
    for fault in listed:
        parts = [fault["what"], *(part for part in fault["evidence"].split("; ") if part not in ("", DAY, NO_TIME))]
        rows.add_row(f"    {date(fault)}", text("; ".join(parts)), style="dim" if fault["mark"] else SEVERE)
    return rows


def date(fault: Fault) -> str:
    """Day and minute of an entry of a logbook, as far as the list has them."""
    moment = datetime.fromtimestamp(fault["at_ns"] / 1e9, tz=UTC)
    return (
        MISSING
        if not fault["timed"]
        else f"{moment:%Y-%m-%d}"
        if DAY in fault["evidence"]
        else f"{moment:%Y-%m-%d %H:%M}"
    )


def counts_as_training(listed: Sequence[Fault]) -> bool:
    """True if the steps of these faults, as `step_of` writes them, are the training's own of all attempts."""
    return any(fault["training_step"] is not None for fault in listed)


def step_of(fault: Fault) -> str:
    """The training's own number of the step; of an attempt whose begin is unknown, its own. Empty without a step."""
    if fault["training_step"] is not None:
        return f"{fault['training_step']:,}"
    return "" if fault["step"] is None else f"{fault['step']:,}"


def _chosen(listed: Sequence[Fault]) -> Iterator[Fault]:
    """The first faults of each kind, all ends that follow another end as one, and marks if they are few."""
    few = sum(fault["mark"] for fault in listed) <= MAX_MARKS
    counts: Counter[str] = Counter()
    followers = [fault for fault in listed if fault["follows"]]
    for fault in listed:
        if fault["follows"]:
            if fault is followers[0]:
                yield _merged(followers)
            continue
        counts[fault["kind"]] += 1
        if few if fault["mark"] else counts[fault["kind"]] <= MAX_PER_KIND:
            yield fault


def _omitted(listed: Sequence[Fault]) -> Iterator[str]:
    counted = Counter(fault["kind"] for fault in listed if not fault["mark"] and not fault["follows"])
    for kind, number in counted.items():
        if number > MAX_PER_KIND:
            yield f"{count(number - MAX_PER_KIND)} more: {kind.replace('_', ' ')} (see --format json)"


def _merged(followers: Sequence[Fault]) -> Fault:
    """One line for all ends that followed, most likely because of, the first end."""
    how = Counter(fault["what"].partition(" in ")[0] for fault in followers)
    listed = ", ".join(f"{what} ({number})" if len(how) > 1 else what for what, number in how.most_common(MAX_PER_KIND))
    ranks = sorted(rank for fault in followers for rank in fault["ranks"])
    return {**followers[0], "ranks": ranks, "what": f"ended after that: {listed}", "evidence": "", "mark": False}


def _sentence(fault: Fault) -> str:
    lasted = f", {duration(fault['lasted_ns'])}" if fault["mark"] and fault["lasted_ns"] is not None else ""
    return "; ".join(part for part in (fault["what"] + lasted, fault["evidence"]) if part)
