"""The committed sample runs open, have the expected numbers, and add up."""

import json
from pathlib import Path

import pytest

import traincope
from traincope.cli.main import main
from traincope.report import to_document, to_json

SAMPLES = sorted((Path(__file__).parents[1] / "sample_runs").iterdir())
MEGABYTE = 1_000_000


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_sample_runs_numbers_are_the_expected_ones(sample: Path) -> None:
    document = to_document(traincope.analyze(traincope.open_run(sample)))
    assert json.loads(to_json(document)) == json.loads((sample / "expected.json").read_text())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_sample_run_is_small_and_names_its_command(sample: Path) -> None:
    assert sum(path.stat().st_size for path in sample.rglob("*")) < MEGABYTE
    assert "traincope" in (sample / "MADE_BY").read_text()


def test_the_demo_adds_up_and_its_bubble_is_what_theory_says() -> None:
    """1F1B with P = 2, M = 8: (P - 1) / (M + P - 1) = 1/9 of the pipeline's time, by formula and by replay."""
    analysis = traincope.analyze(traincope.open_run(SAMPLES[0]))
    for rank in analysis.ledger.ranks:
        assert (sum(values for values in rank.terms.values() if values is not None) == rank.wall_ns).all()
    assert analysis.bubble is not None
    assert analysis.bubble.theory_ratio == pytest.approx(1 / 9)
    assert analysis.bubble.replay_ratio == pytest.approx(1 / 9, abs=1e-6)


def test_the_report_in_the_docs_is_the_report_that_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(SAMPLES[0].parent / "demo-3d")])
    printed = capsys.readouterr().out
    shown = (SAMPLES[0].parents[1] / "docs" / "report.md").read_text()
    assert f"$ traincope report sample_runs/demo-3d\n{printed}```\n" in shown
