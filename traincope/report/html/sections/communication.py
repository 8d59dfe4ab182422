"""Communication section: time by axis, operation and call site, and waits by group."""

from collections.abc import Iterator

from traincope.analysis import AxisOperation, all_calls
from traincope.analysis.attribution.terms import exposed_transfer
from traincope.figures.ranks.communication_tree import without_places
from traincope.figures.ranks.icicle import communication_icicle
from traincope.figures.ranks.wait_matrix import wait_matrix
from traincope.palette import colour
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.html.values import swatch
from traincope.report.sections.counted_steps import sampled
from traincope.report.sections.forms import across_hosts
from traincope.report.text.sections.communication import notes as operation_notes

TITLE = "Communication"
HEADS = ("axis", "operation", "count", "bytes", "transfer ms", "wait ms", "exposed ms", "bus GB/s")
NO_WAITS = "No rank waited for another rank in any group."


def communication(source: Source) -> Section:
    operations, data = source.analysis.comm, source.document["ledger"]
    if not operations or data is None:
        why = "No collective was recorded in a counted step." if data else "No complete step was recorded."
        return Section(name="communication", title=TITLE, missing=why)
    per_step = data["rank_steps"]
    rows = (_row(source, at, operation) for at, operation in enumerate(operations))
    return Section(
        name="communication",
        title=TITLE,
        lead=f"mean per rank and step{sampled(data)}",
        body=(
            *_figures(source),
            table("Operations by axis", HEADS, rows, words=(0, 1)),
            notes(
                [*_apart(source), *(note.plain.strip() for note in operation_notes(operations, rank_steps=per_step))]
            ),
        ),
    )


def _figures(source: Source) -> Iterator[Html]:
    analysis = source.analysis
    yield plot(
        communication_icicle(
            all_calls(analysis.calls) or without_places(analysis.comm), rank_steps=analysis.ledger.rank_steps
        ),
        name="icicle",
        caption="Axis, operation, call site, and its wait, exposed and hidden transfer; click a box to zoom in",
    )
    if not analysis.group_waits:
        yield tag("p", NO_WAITS, class_="nothing")
        return
    yield plot(
        wait_matrix(analysis.group_waits, steps=source.document["run"]["steps"]),
        name="waits",
        caption="Wait of each rank in each group until the last member arrived",
    )


def _apart(source: Source) -> Iterator[str]:
    apart = across_hosts(source.analysis.timeline.clocks)
    if apart:
        yield f"waits and transfers{apart}"


def _row(source: Source, at: int, operation: AxisOperation) -> list[Html]:
    per = ("ledger", "rank_steps")
    dot = swatch(colour(exposed_transfer(operation.axis)))
    return [
        joined(dot, operation.axis),
        joined(operation.operation),
        source.number("comm", at, "count", form="mean", per=per),
        source.number("comm", at, "bytes", form="size", per=per),
        source.number("comm", at, "transfer_ns", form="milliseconds", per=per),
        source.number("comm", at, "wait_ns", form="milliseconds", per=per),
        source.number("comm", at, "exposed_ns", form="milliseconds", per=per),
        source.number("comm", at, "bus_bandwidth_bytes_per_second", form="gigabytes"),
    ]
