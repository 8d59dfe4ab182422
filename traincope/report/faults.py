"""What happened, before anything is said of time: a line a fault, by time."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from traincope.analysis import FaultKind
from traincope.palette import SEVERE
from traincope.report.plain import text
from traincope.report.schema import Document, Fault
from traincope.units import MISSING, count, duration, numbers

MOST_OF_A_KIND = 3
"""More than these of one kind are counted, not listed; JSON has them all."""
MOST_MARKS = 5
"""With more than this many marks none is listed."""


def faults(document: Document) -> Iterator[RenderableType] | None:
    """None where nothing went wrong: marks alone are no section."""
    told = [fault for fault in document["faults"] if fault["kind"] != FaultKind.NO_END]
    if all(fault["mark"] for fault in told):
        return None
    return _section(told, since_ns=began_ns(document))


def began_ns(document: Document) -> int:
    """The job's first record, where attempts before the last can be read."""
    attempts = [] if document["goodput"] is None else document["goodput"]["attempts"]
    return min([document["run"]["start"], *(attempt["began"] for attempt in attempts)])


def _section(told: Sequence[Fault], *, since_ns: int) -> Iterator[RenderableType]:
    head = Text("FAULTS", style="bold")
    yield head.append("  by time since the run began", style="not bold dim")
    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("    after", "step", "rank"):
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("", ratio=1)
    for fault in _chosen(told):
        when = f"    {duration(max(fault['at_ns'] - since_ns, 0))}"
        step = MISSING if fault["step"] is None else str(fault["step"])
        style = "dim" if fault["mark"] else "" if fault["follows"] else SEVERE
        rows.add_row(when, step, numbers(fault["ranks"]) or "all", text(_sentence(fault)), style=style)
    for line in _left_out(told):
        rows.add_row("", "", "", text(line), style="dim")
    yield rows


def _chosen(told: Sequence[Fault]) -> Iterator[Fault]:
    """The first few of each kind; ends that follow another are one; marks only where they are few."""
    few = sum(fault["mark"] for fault in told) <= MOST_MARKS
    seen: Counter[str] = Counter()
    followers = [fault for fault in told if fault["follows"]]
    for fault in told:
        if fault["follows"]:
            if fault is followers[0]:
                yield _together(followers)
            continue
        seen[fault["kind"]] += 1
        if few if fault["mark"] else seen[fault["kind"]] <= MOST_OF_A_KIND:
            yield fault


def _left_out(told: Sequence[Fault]) -> Iterator[str]:
    counted = Counter(fault["kind"] for fault in told if not fault["mark"] and not fault["follows"])
    for kind, number in counted.items():
        if number > MOST_OF_A_KIND:
            yield f"{count(number - MOST_OF_A_KIND)} more: {kind.replace('_', ' ')} (see --format json)"


def _together(followers: Sequence[Fault]) -> Fault:
    """They ended because the first did, most likely: one line for all of them."""
    how = Counter(fault["what"].partition(" in ")[0] for fault in followers)
    told = ", ".join(f"{what} ({number})" if len(how) > 1 else what for what, number in how.most_common(MOST_OF_A_KIND))
    ranks = sorted(rank for fault in followers for rank in fault["ranks"])
    return {**followers[0], "ranks": ranks, "what": f"ended after that: {told}", "evidence": "", "mark": False}


def _sentence(fault: Fault) -> str:
    lasted = f", {duration(fault['lasted_ns'])}" if fault["mark"] and fault["lasted_ns"] is not None else ""
    return "; ".join(part for part in (fault["what"] + lasted, fault["evidence"]) if part)
