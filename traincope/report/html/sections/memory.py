"""Memory over the steps, and who held least and most."""

from collections.abc import Iterator

from traincope.analysis import memory_samples
from traincope.figures.memory import memory_over_steps
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.schema import MemoryUse

TITLE = "Memory"
HEADS = ("measure", "least", "rank", "most", "rank", "peak", "rank", "growth a step", "")


def memory(source: Source) -> Section:
    uses = source.document["memory"]
    if not uses:
        return Section(name="memory", title=TITLE, missing="No memory was looked at in this run.")
    measures = dict.fromkeys(use["measure"] for use in uses)
    return Section(
        name="memory",
        title=TITLE,
        lead="of a rank",
        body=(
            *_figure(source),
            table("Memory when last looked", HEADS, [_row(source, name, uses) for name in measures]),
        ),
    )


def _figure(source: Source) -> Iterator[Html]:
    samples = memory_samples(source.analysis.timeline)
    if not samples:
        yield tag("p", "Nothing was looked at when a step was over, so no curve is drawn.", class_="nothing")
        return
    caption = "When each step was over: the rank that held most, and a band down to the one that held least"
    yield plot(memory_over_steps(samples), name="held", caption=caption)


def _row(source: Source, measure: str, uses: list[MemoryUse]) -> list[Html]:
    own = [at for at, use in enumerate(uses) if use["measure"] == measure]
    least, most = (choose(own, key=lambda at: uses[at]["last_bytes"]) for choose in (min, max))
    peak = max(own, key=lambda at: uses[at]["peak_bytes"])
    fastest = max(own, key=lambda at: uses[at]["growth_bytes_per_step"] or float("-inf"))
    leaks = any(uses[at]["leak"] for at in own)
    return [
        joined(measure),
        source.number("memory", least, "last_bytes", form="size"),
        joined(str(uses[least]["rank"])),
        source.number("memory", most, "last_bytes", form="size"),
        joined(str(uses[most]["rank"])),
        source.number("memory", peak, "peak_bytes", form="size"),
        joined(str(uses[peak]["rank"])),
        source.number("memory", fastest, "growth_bytes_per_step", form="growth"),
        tag("strong", "grows", class_="severe") if leaks else joined(),
    ]
