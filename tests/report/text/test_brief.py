"""The brief at the end of a training: never more than 16 lines, its first five the verdict, and no number cut."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import traincope
from tests.timeline.build import rank, step, timeline
from traincope.analysis import Finding, FindingKind
from traincope.analysis.confidence import HIGH
from traincope.events import Flag
from traincope.report.text.brief import render_brief

SAMPLES = Path(__file__).parents[3] / "sample_runs"
RECORDED = sorted(path.parent for path in SAMPLES.rglob("MADE_BY"))


def brief(analysis: traincope.Analysis, *, width: int = 80) -> list[str]:
    file = io.StringIO()
    render_brief(analysis, Console(file=file, width=width))
    return file.getvalue().splitlines()


def test_it_has_the_run_its_verdict_its_largest_terms_and_its_mfu() -> None:
    lines = brief(traincope.analyze(traincope.open_run(SAMPLES / "demo-3d")))
    assert lines[0].startswith("demo-3d: 8 ranks, 5 steps of 2.14 s, tokens/s 2,871, goodput 85.4 %")
    at = next(number for number, line in enumerate(lines) if line.startswith("    forward "))
    assert any(line.startswith("exposed wait (saves at most 36.2 %): ") for line in lines[:at])
    assert any(line.startswith("do: Give every rank batches of equal size") for line in lines[:at])
    shares = {line[:26].strip(): float(line[26:].split()[0]) for line in lines[at:-1]}
    assert len(shares) == 7
    assert shares.pop("step") == 100.0
    assert sum(shares.values()) == pytest.approx(100, abs=0.3)
    assert lines[-1] == "MFU 22.3 %"


@pytest.mark.parametrize("run", RECORDED, ids=lambda path: path.name)
def test_it_fits_on_every_screen(run: Path) -> None:
    analysis = traincope.analyze(traincope.open_run(run))
    for width in (80, 100, 200):
        lines = brief(analysis, width=width)
        assert len(lines) <= 16
        assert all(len(line) <= min(width, 100) for line in lines)


def test_an_unknown_mfu_has_its_reason() -> None:
    """The reason names the remedy, e.g. `traincope doctor --measure-peak` for a processor of unknown peak."""
    lines = brief(traincope.analyze(timeline(rank(0, *(step(at, at * 100, at * 100 + 100) for at in range(40))))))
    assert lines[0].startswith("hand-made: 1 rank, 39 steps of 100 ns, goodput 100.0 %")
    assert lines[-1] == "MFU unknown: no FLOPs are recorded"


def test_a_killed_rank_is_said_once() -> None:
    lines = brief(traincope.analyze(traincope.open_run(SAMPLES / "faults" / "killed")))
    assert "killed rank on rank 1: rank 1 ended first: it was killed (signal 9), noted by" in lines
    assert not any(line.startswith("fault") for line in lines)


def test_a_fault_that_the_first_finding_is_not_about_comes_first() -> None:
    lines = brief(traincope.analyze(traincope.open_run(SAMPLES / "faults" / "nan-gradient")))
    assert lines[2:4] == [
        "fault on ranks 0, 1 in step 8: the optimizer was not run: the gradient norm is",
        "    NaN",
    ]


def test_what_its_steps_show_follows_that_the_job_was_stopped() -> None:
    analysis = traincope.analyze(traincope.open_run(SAMPLES / "faults" / "slow-rank"))
    stopped = Finding(kind=FindingKind.STOPPED_JOB, confidence=HIGH, evidence="stopped by you, with Ctrl-C", advice="-")
    whole, cut = brief(analysis), brief(replace(analysis, verdict=(stopped, *analysis.verdict)))
    assert cut[2:4] == ["stopped job: stopped by you, with Ctrl-C", whole[2]]
    assert cut[3].startswith("straggler on rank 1")
    assert [line for line in cut if line.startswith("do: ")] == [line for line in whole if line.startswith("do: ")]


def test_a_run_in_windows_says_on_how_many_steps_it_stands() -> None:
    rows = [step(at, at * 100, at * 100 + 100, flags=0 if 8 <= at < 16 else Flag.DETAILED) for at in range(40)]
    lines = brief(traincope.analyze(timeline(rank(0, *rows))), width=100)
    assert lines[0].endswith(", recorded in detail: 31 of 39 steps")
