"""What is wrong, by which evidence, what to do, and what it buys: the first thing to be read."""

from collections.abc import Iterator

from traincope.analysis import FindingKind
from traincope.report.html.markup import Html, tag
from traincope.report.html.section import Section
from traincope.report.html.source import Source
from traincope.report.schema import Finding
from traincope.report.verdict import where

NOTHING = "Nothing can be said: no complete step was recorded."


def verdict(source: Source) -> Section:
    findings = source.document["verdict"]
    savings = any(finding["estimated_gain_ratio"] is not None for finding in findings)
    items = [tag("li", *_item(source, at, finding), class_=_tone(finding)) for at, finding in enumerate(findings)]
    return Section(
        name="verdict",
        title="Verdict",
        lead="savings are shares of step time" if savings else "",
        body=(tag("ol", *items, class_="findings"),),
        missing=None if findings else NOTHING,
    )


def _tone(finding: Finding) -> str:
    return "good" if finding["kind"] == FindingKind.HEALTHY else "bad"


def _item(source: Source, at: int, finding: Finding) -> Iterator[Html]:
    yield tag("h3", finding["kind"].replace("_", " "), *_saves(source, at, finding))
    yield tag("p", f"{where(finding)}; confidence {finding['confidence']}", class_="where")
    yield tag("p", finding["evidence"])
    if finding["advice"]:
        yield tag("p", tag("strong", "Do: "), finding["advice"], class_="advice")


def _saves(source: Source, at: int, finding: Finding) -> Iterator[Html]:
    if finding["estimated_gain_ratio"] is not None:
        gain = source.number("verdict", at, "estimated_gain_ratio", form="share")
        yield tag("span", "saves ", gain, class_="saves")
