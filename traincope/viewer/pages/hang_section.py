"""Hangs of a run on a page: who caused each, who waited for it and in what, where it stood, since when, what to do."""

from collections.abc import Iterator

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, Hang
from traincope.figures.drawing.time_axis import instant
from traincope.units import duration, numbers
from traincope.viewer.components import facts, plain, section
from traincope.viewer.view import View

MAX_FRAMES = 30
MAX_LINKED_RANKS = 8


def hang_section(analysis: Analysis, *, view: View, origin_ns: int) -> Component:
    """All hangs and mismatches. The analysis has at least one. `origin_ns`: begin of the timeline."""
    parts = [part for hang in analysis.hangs for part in _parts(hang, analysis, view=view, origin_ns=origin_ns)]
    return section("Hangs", *parts, note="the first cause first")


def _parts(hang: Hang, analysis: Analysis, *, view: View, origin_ns: int) -> Iterator[Component]:
    at_ns = hang.since_ns - origin_ns
    ranks = [*hang.culprits, *hang.suspects, *hang.victims][:MAX_LINKED_RANKS]
    timeline = view.on("timeline", at=at_ns, ranks=numbers(sorted(ranks)) or None)
    yield html.P(plain(hang.evidence))
    yield facts(_facts(hang))
    yield html.P(dcc.Link(f"since {instant(at_ns, step_ns=1_000_000)} on the timeline", href=timeline.address))
    if hang.stack:
        shown = "\n".join(plain(frame) for frame in hang.stack[:MAX_FRAMES])
        yield html.P(f"Stack of {numbers(hang.culprits[:1], 'rank')}, innermost first:")
        yield html.Pre(shown)
    advice = next((each.advice for each in analysis.verdict if each.evidence == hang.evidence), "")
    if advice:
        yield html.P([html.Strong("Do: "), plain(advice)])


def _facts(hang: Hang) -> Iterator[tuple[str, str]]:
    yield "culprits", numbers(hang.culprits, "rank") if hang.culprits else "unknown"
    if hang.suspects:
        yield "suspects", numbers(hang.suspects, "rank")
    yield "kind", f"{hang.kind.replace('_', ' ')}, confidence {hang.confidence}"
    if hang.victims:
        yield "victims", numbers(hang.victims, "rank")
    if hang.collective is not None:
        on = "" if hang.axis is None else f" on {hang.axis}"
        yield "in", f"{hang.collective}{on}"
    if hang.call_site is not None:
        yield "stood at", hang.call_site
    if hang.step is not None:
        yield "step", str(hang.step)
    yield "lasted", "the run went on" if hang.lasted_ns is None else f"{duration(hang.lasted_ns)} at least"
    if hang.detected_after_seconds is not None:
        yield "noticed by the agent", f"after {hang.detected_after_seconds:.1f} s"
