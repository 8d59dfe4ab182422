"""The top of the page: the run, its size and its headline numbers."""

from collections.abc import Iterator

from traincope.report.html.markup import Html, tag
from traincope.report.html.source import Source
from traincope.report.text.text import facts


def head(source: Source) -> Html:
    return tag(
        "header",
        tag("h1", source.document["run"]["id"]),
        tag("p", ", ".join(facts(source.document)), class_="where"),
        tag("dl", *_numbers(source), class_="numbers"),
    )


def _numbers(source: Source) -> Iterator[Html]:
    """The known headline numbers."""
    shown = (
        ("MFU", source.number("utilization", "mfu", form="share")),
        ("HFU", source.number("utilization", "hfu", form="share")),
        ("tokens per second", source.number("utilization", "tokens_per_second", form="count")),
        ("step time, median", source.number("run", "step_ns", form="duration")),
        ("pipeline bubble", source.number("bubble", "fraction_ratio", form="share")),
        ("goodput", source.number("goodput", "productive_ratio", form="share")),
        ("recorder overhead", source.number("recorder", "overhead_ratio", form="share")),
    )
    for name, value in shown:
        if value.startswith("<data"):
            yield tag("div", tag("dt", name), tag("dd", value))
