"""The critical path as a section of the report and of the document."""

import io
from dataclasses import replace

from rich.console import Console

from tests.analysis.lockstep import lockstep
from tests.report.example import analysis
from tests.timeline.build import rank, step, timeline
from traincope.analysis import Analysis, CriticalPath, analyze
from traincope.analysis.critical_path import MAX_SEGMENTS
from traincope.report.document.document import to_document
from traincope.report.sections.critical_path import critical_path
from traincope.report.sections.section import Drawing, Lines, On
from traincope.report.sections.source import Source
from traincope.report.text.text import render

MS = 1_000_000


def late_ranks() -> Analysis:
    """After a warm-up step rank 1 is late once and rank 0 once, 10 ms on the wire each time."""
    work = [(50 * MS, 50 * MS), (50 * MS, 80 * MS), (70 * MS, 60 * MS)]
    return analyze(timeline(*lockstep(work, transfer_ns=10 * MS)))


def shown(path: CriticalPath | None) -> list[str]:
    console = Console(file=io.StringIO(), width=80, record=True)
    render(replace(analysis(), critical_path=path), console)
    lines = console.export_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("CRITICAL PATH"))
    return lines[first : lines.index("", first)]


def test_the_document_has_its_terms_its_ranks_and_the_segments_of_a_median_step() -> None:
    assert to_document(late_ranks())["critical_path"] == {
        "steps": 2,
        "wall_ns": 170 * MS,
        "terms": {"forward": 150 * MS, "exposed_transfer[dp]": 20 * MS},
        "ranks": [
            {"rank": 0, "ns": 90 * MS, "terms": {"forward": 70 * MS, "exposed_transfer[dp]": 20 * MS}},
            {"rank": 1, "ns": 80 * MS, "terms": {"forward": 80 * MS}},
        ],
        "untold_ns": 0,
        "clock_error_ns": 0,
        "reason": None,
        "step": 2,
        "segments": [
            {"rank": 0, "term": "forward", "start_ns": 0, "duration_ns": 70 * MS},
            {"rank": 0, "term": "exposed_transfer[dp]", "start_ns": 70 * MS, "duration_ns": 10 * MS},
        ],
    }


def test_the_report_has_one_row_per_term_with_its_largest_ranks() -> None:
    assert [" ".join(line.split()) for line in shown(late_ranks().critical_path)] == [
        "CRITICAL PATH what the end of a step waited for: mean 85.0 ms over 2 steps",
        "term share ms per step most on ranks",
        "forward 88.2 % 75.00 1: 47.1 %, 0: 41.2 %",
        "exposed_transfer[dp] 11.8 % 10.00 0: 11.8 %",
    ]


def test_uncertainties_are_printed_below_the_path() -> None:
    path = late_ranks().critical_path
    assert path is not None
    first, second = path.steps
    doubtful = replace(path, steps=(replace(first, untold_ns=2 * MS), second), clock_error_ns=40_000)
    assert " ".join(" ".join(shown(doubtful)[4:]).split()) == (
        "1.00 ms per step of its transfers may be wait: the records cannot separate them "
        "the clocks of the hosts may differ by 40.0 us"
    )


def test_only_screens_say_that_a_long_path_is_not_drawn() -> None:
    path = late_ranks().critical_path
    assert path is not None
    long = replace(path, steps=tuple(replace(step, segments=step.segments * MAX_SEGMENTS) for step in path.steps))
    assert "not drawn" not in " ".join(shown(long))
    results = replace(analysis(), critical_path=long)
    parts = critical_path(Source(analysis=results, document=to_document(results))).on_screens
    assert Lines(("The path is not drawn: it has more than 2,000 segments.",), on=On.SCREEN) in parts
    assert not any(isinstance(part, Drawing) for part in parts)


def test_a_missing_path_has_its_reason() -> None:
    apart = timeline(*(rank(at, step(0, 0, 100), boot_id=f"boot-{at}") for at in (0, 1)))
    result = analyze(apart)
    path = to_document(result)["critical_path"]
    assert (path["steps"], path["step"], path["segments"]) == (0, None, None)
    assert " ".join(shown(result.critical_path)[0].split()) == (
        "CRITICAL PATH unknown: the error between the clocks of its hosts is unknown"
    )
