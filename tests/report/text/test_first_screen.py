"""The first screen fits 100 columns and 45 rows; the brief is one line of numbers and the first finding."""

import io
from pathlib import Path

import pytest
from rich.console import Console

import traincope
from tests.report.example import analysis, without_steps
from tests.timeline.build import rank, step, timeline
from traincope.events import Flag
from traincope.report.text.first_screen import render_first_screen

ROOT = Path(__file__).parents[3] / "sample_runs"
SAMPLES = sorted(path.parent for path in ROOT.rglob("expected.json"))


def screen(result: traincope.Analysis) -> list[str]:
    file = io.StringIO()
    render_first_screen(result, Console(file=file, width=100))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_it_leaves_room_for_the_demos_own_ten_lines(sample: Path) -> None:
    lines = screen(traincope.analyze(traincope.open_run(sample)))
    assert len(lines) <= 35
    assert max(map(len, lines)) <= 100


def test_the_verdict_precedes_the_waterfall_and_five_numbers_end_it() -> None:
    lines = screen(analysis())
    heads = [line.split("  ")[0] for line in lines]
    assert heads.index("VERDICT") < heads.index("WHERE THE TIME WENT")
    assert (
        lines[-1]
        == "mean step 100 ms    tokens/s unknown    MFU unknown    goodput unknown    recorder overhead unknown"
    )


def test_terms_too_small_for_a_bar_are_summed_and_the_bars_still_add_up() -> None:
    lines = screen(traincope.analyze(traincope.open_run(ROOT / "demo-3d")))
    start = next(at for at, line in enumerate(lines) if line.startswith("WHERE THE TIME WENT"))
    shares = {line[:26].strip(): float(line[26:].split()[0]) for line in lines[start + 1 : -2]}
    assert "other terms" in shares
    assert shares.pop("step") == 100.0
    assert sum(shares.values()) == pytest.approx(100, abs=0.05 * len(shares))


def test_a_run_without_steps_has_a_verdict_and_unknown_numbers() -> None:
    lines = screen(without_steps())
    assert "mean step unknown" in lines[-1]
    assert not any(line.startswith("WHERE THE TIME WENT") for line in lines)


def sampled_analysis() -> traincope.Analysis:
    """Forty steps, of which 8 to 15 have no detail."""
    rows = [step(at, at * 100, at * 100 + 100, flags=0 if 8 <= at < 16 else Flag.DETAILED) for at in range(40)]
    return traincope.analyze(timeline(rank(0, *rows)))


def test_the_steps_with_detail_are_told_if_they_are_not_all() -> None:
    assert screen(sampled_analysis())[-1] == "recorded in detail: 31 of 39 steps"
