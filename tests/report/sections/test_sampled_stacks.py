"""Sampled stacks as a section of data: each time is a place in the document."""

from dataclasses import replace

from tests.report.example import MS, analysis
from tests.report.sections.test_faults import source_of
from traincope.analysis.faults.slow_code import Line, SampledWindow, SlowCode
from traincope.report.html.section import on_page
from traincope.report.sections.sampled_stacks import sampled_stacks
from traincope.report.sections.values import sentences

LINE = Line(site="train.py:31", function="Block.forward", called="time.sleep", module="layers.3", term="forward")


def test_the_newest_windows_are_worded_with_their_own_times() -> None:
    """The early window is not in the document, and of the four others the newest three are shown."""
    windows = [
        SampledWindow(
            first_step=first,
            last_step=first + 19,
            steps=20,
            ranks=(0, 1),
            slow=(SlowCode(rank=1, line=LINE, ns=first * MS, peers_ns=MS, excess_ratio=1.0),) if first > 60 else (),
            early=first == 7,
        )
        for first in (7, 40, 60, 80, 100)
    ]
    source = source_of(replace(analysis(), sampled_windows=tuple(windows)))
    section = sampled_stacks(source)
    code = "in time.sleep at train.py:31 (Block.forward), forward of layers.3; its peers at most 1.00 ms"
    assert sentences(source.document, section) == [
        "time per step outside of communication",
        "steps 60-79, ranks 0, 1: no line of code takes one of them significantly longer",
        f"steps 80-99, ranks 0, 1: rank 1 is 80.00 ms {code}",
        f"steps 100-119, ranks 0, 1: rank 1 is 100.00 ms {code}",
    ]
    assert (
        'data-at="/sampled_stacks/3/slow/0/ns" data-as="milliseconds">100.00' in on_page(section, source.document).html
    )
