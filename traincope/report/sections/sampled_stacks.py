"""Sampled stacks: the lines of code in which a rank spends more time than its peers."""

from collections.abc import Iterator

from traincope.analysis.faults.slow_code import SampledWindow
from traincope.report.sections.section import Lines, Section, Words, number
from traincope.report.sections.source import Source
from traincope.units import numbers, ranges

NAME, TITLE = "sampled-stacks", "Sampled stacks"
MISSING = "No window of sampled Python stacks was requested. `traincope profile RUN --stacks RANK RANK` requests one."
MAX_WINDOWS = 3
"""The newest windows are shown; JSON has all."""


def sampled_stacks(source: Source) -> Section:
    windows = [window for window in source.analysis.sampled_windows if not window.early]
    shown = list(enumerate(windows))[-MAX_WINDOWS:]
    return Section(
        name=NAME,
        title=TITLE,
        lead="time per step outside of communication",
        parts=(Lines(tuple(line for at, window in shown for line in _window(at, window)), facts=True),),
        missing=None if windows else MISSING,
    )


def _window(at: int, window: SampledWindow) -> Iterator[Words]:
    """Each rank with the line, what it called, where, and the times of the rank and of its peers."""
    steps = ranges([[window.first_step, window.last_step]], "step", max_ranges=1)
    compared = f"{steps}, {numbers(window.ranks, 'rank')}"
    if not window.slow:
        yield f"{compared}: no line of code takes one of them significantly longer"
    for place, slow in enumerate(window.slow):
        line, times = slow.line, ("sampled_stacks", at, "slow", place)
        what = f"{line.called} at {line.site}" if line.called else line.site
        where = f"{line.term} of {line.module}" if line.module else line.term
        yield (
            *(f"{compared}: rank {slow.rank} is ", number(*times, "ns", form="milliseconds")),
            f" ms in {what} ({line.function}), {where}; its peers at most ",
            *(number(*times, "peers_ns", form="milliseconds"), " ms"),
        )
