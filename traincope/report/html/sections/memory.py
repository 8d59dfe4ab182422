"""Memory section: memory over the steps, and the lowest and highest ranks."""

from collections.abc import Iterator

from traincope.analysis import memory_samples
from traincope.figures.steps.memory import memory_over_steps
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.schema import MemoryUse

TITLE = "Memory"
HEADS = ("measure", "lowest", "rank", "highest", "rank", "peak", "rank", "growth per step", "")


def memory(source: Source) -> Section:
    uses = source.document["memory"]
    if not uses:
        return Section(name="memory", title=TITLE, missing="No memory was recorded.")
    measures = dict.fromkeys(use["measure"] for use in uses)
    return Section(
        name="memory",
        title=TITLE,
        lead="per rank",
        body=(
            *_figure(source),
            table("Memory at the last sample", HEADS, [_row(source, name, uses) for name in measures]),
        ),
    )


def _figure(source: Source) -> Iterator[Html]:
    samples = memory_samples(source.analysis.timeline)
    if not samples:
        yield tag("p", "No sample at the end of a step, so no curve is drawn.", class_="nothing")
        return
    caption = "At the end of each step; line: highest rank; band: down to the lowest rank"
    yield plot(memory_over_steps(samples), name="held", caption=caption)


def _row(source: Source, measure: str, uses: list[MemoryUse]) -> list[Html]:
    positions = [at for at, use in enumerate(uses) if use["measure"] == measure]
    lowest, highest = (choose(positions, key=lambda at: uses[at]["last_bytes"]) for choose in (min, max))
    peak = max(positions, key=lambda at: uses[at]["peak_bytes"])
    fastest = max(positions, key=lambda at: uses[at]["growth_bytes_per_step"] or float("-inf"))
    leaks = any(uses[at]["leak"] for at in positions)
    return [
        joined(measure),
        source.number("memory", lowest, "last_bytes", form="size"),
        joined(str(uses[lowest]["rank"])),
        source.number("memory", highest, "last_bytes", form="size"),
        joined(str(uses[highest]["rank"])),
        source.number("memory", peak, "peak_bytes", form="size"),
        joined(str(uses[peak]["rank"])),
        source.number("memory", fastest, "growth_bytes_per_step", form="growth"),
        tag("strong", "grows", class_="severe") if leaks else joined(),
    ]
