"""Faults section: every fault and event on the clock of the run, and in words."""

from traincope.analysis import FaultKind
from traincope.figures.run.faults import bands_of, fault_timeline
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, link, table
from traincope.report.html.source import Source
from traincope.report.schema import Fault
from traincope.report.sections.forms import across_hosts
from traincope.report.sections.reliability import is_logbook
from traincope.report.text.sections.faults import began_ns, date
from traincope.units import MISSING, count, duration, numbers

TITLE = "Faults"
HEADS = ("time", "attempt", "step", "ranks", "kind", "event", "evidence", "duration")
NOTHING = "No fault, checkpoint, evaluation or event was recorded."
MAX_ROWS = 200


def faults(source: Source) -> Section:
    document = source.document
    data = document["faults"]
    if not data:
        return Section(name="faults", title=TITLE, missing="No fault, checkpoint, evaluation or event was recorded.")
    began, apart = began_ns(source.analysis), across_hosts(source.analysis.timeline.clocks)
    marks = sum(fault["mark"] for fault in data)
    no_ends = sum(fault["kind"] == FaultKind.NO_END for fault in data)
    unknown = f", {count(no_ends, 'rank')} without a recorded end" if no_ends else ""
    rows = sorted(enumerate(data), key=lambda item: (item[1]["mark"], item[1]["at_ns"]))[:MAX_ROWS]
    shown = sorted(rows, key=lambda item: item[1]["at_ns"])
    cut = "" if len(shown) == len(data) else f"; {len(shown)} of {len(data)} in the table, the first that went wrong"
    return Section(
        name="faults",
        title=TITLE,
        lead=f"{count(len(data) - marks - no_ends, 'fault')}, {count(marks, 'event')}{unknown}{cut}",
        body=(
            plot(
                fault_timeline(
                    source.analysis.faults,
                    began_ns=min([began, *(fault["at_ns"] for fault in data if fault["timed"])]),
                    end_ns=document["run"]["end"] or began,
                    bands=bands_of(source.analysis),
                ),
                name="happened",
                caption=f"Faults in red and other events in grey{apart}",
            ),
            table(
                "Faults and events by time",
                HEADS,
                [_row(source, at, fault, began) for at, fault in shown],
                words=(4, 5, 6),
            ),
        ),
    )


def _row(source: Source, at: int, fault: Fault, began: int) -> list[Html]:
    severe = not fault["mark"] and not fault["follows"] and fault["kind"] != FaultKind.NO_END
    return [
        joined(date(fault) if is_logbook(source.document) else duration(max(fault["at_ns"] - began, 0))),
        source.number("faults", at, "attempt", form="count"),
        source.number("faults", at, "step" if fault["training_step"] is None else "training_step", form="count"),
        joined(numbers(fault["ranks"]) or "all"),
        link(fault["kind"]),
        tag("strong", fault["what"], class_="severe") if severe else joined(fault["what"]),
        joined(fault["evidence"] or MISSING),
        source.number("faults", at, "lasted_ns", form="duration"),
    ]
