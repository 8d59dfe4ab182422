"""What happened: every fault and mark on the clock of the run, and in words."""

from traincope.analysis import FaultKind
from traincope.figures.faults import fault_timeline
from traincope.report.faults import began_ns
from traincope.report.hosts import across_hosts
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.schema import Fault
from traincope.units import MISSING, count, duration, numbers

TITLE = "Faults"
HEADS = ("after", "step", "rank", "what", "evidence", "lasted")
NOTHING = "Nothing went wrong that was recorded, and nothing was marked."
MOST_ROWS = 200


def faults(source: Source) -> Section:
    document = source.document
    found = document["faults"]
    if not found:
        return Section(
            name="faults", title=TITLE, missing="Nothing went wrong that was recorded, and nothing was marked."
        )
    began, apart = began_ns(document), across_hosts(document["clock"])
    wrong = sum(not fault["mark"] for fault in found)
    rows = sorted(enumerate(found), key=lambda item: (item[1]["mark"], item[1]["at_ns"]))[:MOST_ROWS]
    shown = sorted(rows, key=lambda item: item[1]["at_ns"])
    cut = "" if len(shown) == len(found) else f"; {len(shown)} of {len(found)} in the table, the first that went wrong"
    return Section(
        name="faults",
        title=TITLE,
        lead=f"{count(wrong, 'fault')}, {count(len(found) - wrong, 'mark')}{cut}",
        body=(
            plot(
                fault_timeline(source.analysis.faults, began_ns=began, end_ns=document["run"]["end"] or began),
                name="happened",
                caption=f"What happened when{apart}; red went wrong, grey is what one reads it beside",
            ),
            table(
                "Faults and marks by time",
                HEADS,
                [_row(source, at, fault, began) for at, fault in shown],
                words=(3, 4),
            ),
        ),
    )


def _row(source: Source, at: int, fault: Fault, began: int) -> list[Html]:
    severe = not fault["mark"] and not fault["follows"] and fault["kind"] != FaultKind.NO_END
    return [
        joined(duration(max(fault["at_ns"] - began, 0))),
        source.number("faults", at, "step", form="count"),
        joined(numbers(fault["ranks"]) or "all"),
        tag("strong", fault["what"], class_="severe") if severe else joined(fault["what"]),
        joined(fault["evidence"] or MISSING),
        source.number("faults", at, "lasted_ns", form="duration"),
    ]
