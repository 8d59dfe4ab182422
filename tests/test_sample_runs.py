"""The committed sample runs open, have the expected numbers, and add up."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import traincope
from traincope.analysis import FaultKind
from traincope.cli.main import main
from traincope.inject import read_truths
from traincope.report.document.document import to_document, to_json
from traincope.report.text.brief import render_brief

ROOT = Path(__file__).parents[1] / "sample_runs"
SAMPLES = sorted(path.parent for path in ROOT.rglob("expected.json"))
MEGABYTE, S = 1_000_000, 1_000_000_000


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_sample_runs_numbers_are_the_expected_ones(sample: Path) -> None:
    document = to_document(traincope.analyze(traincope.open_run(sample)))
    assert json.loads(to_json(document)) == json.loads((sample / "expected.json").read_text())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_sample_run_is_small_and_names_its_command(sample: Path) -> None:
    assert sum(path.stat().st_size for path in sample.rglob("*")) < MEGABYTE
    assert "traincope" in (sample / "MADE_BY").read_text()


def test_the_demo_adds_up_and_its_bubble_is_what_theory_says() -> None:
    """1F1B with P = 2, M = 8: (P - 1) / (M + P - 1) = 1/9 of the pipeline's time, by formula and by replay."""
    analysis = traincope.analyze(traincope.open_run(ROOT / "demo"))
    for rank in analysis.ledger.ranks:
        assert (sum(values for values in rank.terms.values() if values is not None) == rank.wall_ns).all()
    assert analysis.bubble is not None
    assert analysis.bubble.theory_ratio == pytest.approx(1 / 9)
    assert analysis.bubble.replay_ratio == pytest.approx(1 / 9, abs=1e-6)


def test_an_attempt_is_described_alone_with_the_numbers_that_the_job_gives_its_steps() -> None:
    sample = ROOT / "restart"
    first, whole = (traincope.open_run(path).document for path in (sample / "attempt-000", sample))
    assert (first["run"]["attempt"], first["run"]["later_attempts"], first["run"]["attempts"]) == (0, 1, 2)
    assert (whole["run"]["attempt"], whole["run"]["training_step_offset"]) == (1, 9)
    ends = [fault for fault in first["faults"] if not fault["mark"]]
    assert [fault["training_step"] for fault in ends[-2:]] == [12, 12]
    assert ends[-2]["kind"] == "killed"  # rank 0 ends after it: by its lost connection, or by its launcher
    both = [fault for fault in whole["faults"] if fault["attempt"] == 0]
    assert both == [fault for fault in first["faults"] if fault not in ends[-2:]]


def test_the_restart_has_the_steps_that_its_faults_cost() -> None:
    """20 steps, saved after each third. NaN in the eighth of each attempt; rank 1 is killed in step 12.

    Attempt 0 makes steps 1 to 8, goes back to 6, and makes 7 to 11. Attempt 1 makes 10 to 17, goes back to 15, and
    makes 16 to 20.
    """
    sample = ROOT / "restart"
    analysis = traincope.analyze(traincope.open_run(sample))
    job, order = analysis.goodput, analysis.data_order
    assert job is not None
    assert [attempt.num_steps for attempt in job.attempts] == [8 + 5, 8 + 5]
    assert (job.steps_rolled_back, job.steps_lost, job.steps_skipped, job.steps_kept) == (4, 2, 0, 20)
    assert sum(ns or 0 for ns in job.parts.values()) == job.elapsed_ns
    assert order is not None
    assert [(each.step, each.ranks, each.order) for each in order.continuations] == [(9, (0, 1), "right")]
    truths = [truth for truth in read_truths(sample / "injected.jsonl") if truth.fault == "nan_gradient"]
    backs = [fault for fault in analysis.faults if fault.kind is FaultKind.ROLLBACK]
    assert [(back.ranks, back.evidence, back.attempt) for back in backs] == [
        ((0, 1), "2 steps undone", attempt) for attempt in (0, 1)
    ]
    assert all(truth.at_wall_ns < back.at_ns < truth.at_wall_ns + S for truth, back in zip(truths, backs, strict=True))
    bad = [fault for fault in analysis.faults if fault.kind is FaultKind.NOT_FINITE]
    assert [(fault.attempt, fault.training_step) for fault in bad] == [(0, 8), (1, 17)]
    saved = [fault.training_step for fault in analysis.faults if fault.what == "save checkpoint" and fault.step]
    assert saved == [3, 6, 9, 12, 15, 18, 20]
    (restart,) = (fault for fault in analysis.faults if fault.kind is FaultKind.RESTART)
    assert restart.what == "attempt 1: rank 1 was killed (signal 9)"
    assert restart.evidence.startswith("the launcher noticed it ")
    assert restart.lasted_ns == job.restart_ns
    reliability = analysis.reliability
    assert reliability is not None
    (interruption,) = reliability.interruptions
    assert (interruption.cause, interruption.what) == ("killed", "rank 1 was killed (signal 9)")
    assert interruption.detect_ns is not None
    assert f"noticed it {interruption.detect_ns / 1e9:.1f} s after" in restart.evidence
    assert (interruption.restart_ns, interruption.lost_steps) == (job.restart_ns, 2)
    assert sum(entry.ns or 0 for entry in reliability.badput) == job.elapsed_ns - (job.productive_ns or 0)


def test_the_report_in_the_docs_is_begin_and_end_of_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(ROOT / "demo-3d")])
    printed = capsys.readouterr().out
    page = (ROOT.parent / "docs" / "start" / "report.md").read_text()
    _, _, sample = page.partition("$ traincope report sample_runs/demo-3d\n")
    begin, end = sample.partition("```\n")[0].split("...\n")
    assert printed.startswith(begin)
    assert printed.endswith(end)


def test_the_page_on_a_first_run_shows_what_the_command_prints() -> None:
    page = (ROOT.parent / "docs" / "start" / "first-run.md").read_text()
    _, _, shown = page.partition("--brief\n")
    console = Console(file=StringIO(), width=80)
    render_brief(traincope.analyze(traincope.open_run(ROOT / "faults" / "slow-rank")), console)
    assert isinstance(console.file, StringIO)
    assert [line[2:] for line in shown.partition("\n```")[0].splitlines()] == console.file.getvalue().splitlines()
