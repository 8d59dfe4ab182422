"""SAMPLED STACKS: the lines of code in which a rank spends more time than its peers."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis.faults.slow_code import SampledWindow, SlowCode
from traincope.lines import indented, text
from traincope.units import milliseconds, numbers, ranges

MAX_WINDOWS = 3
"""The newest windows are shown; JSON has all."""


def sampled_stacks(windows: list[SampledWindow]) -> Iterator[RenderableType]:
    """One line per window, and one for each line of code."""
    yield Text("SAMPLED STACKS", style="bold").append("  time per step outside of communication", style="not bold dim")
    yield indented(text(line) for window in windows[-MAX_WINDOWS:] for line in _window(window))


def _window(window: SampledWindow) -> Iterator[str]:
    steps = ranges([[window.first_step, window.last_step]], "step", max_ranges=1)
    compared = f"{steps}, {numbers(window.ranks, 'rank')}"
    if not window.slow:
        yield f"{compared}: no line of code takes one of them significantly longer"
    for slow in window.slow:
        yield f"{compared}: {sentence(slow)}"


def sentence(slow: SlowCode) -> str:
    """Name the rank, the line, what it called, where, and both times."""
    line = slow.line
    what = f"{line.called} at {line.site}" if line.called else line.site
    where = f"{line.term} of {line.module}" if line.module else line.term
    mine, peers = milliseconds(slow.ns), milliseconds(slow.peers_ns)
    return f"rank {slow.rank} is {mine} ms in {what} ({line.function}), {where}; its peers at most {peers} ms"
