"""Choice between rows and all events by `traincope report`."""

import argparse
import threading
from pathlib import Path

import pytest

from tests.summaries.test_summaries import RANKS, WORLD, write_job
from traincope.cli.commands import report
from traincope.cli.commands.report import Report
from traincope.cli.main import main
from traincope.cli.workers import read_progress
from traincope.store.layout import ROWS_FILE, rank_directory
from traincope.summaries import reading


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reading, "MANY_RANKS", RANKS)
    return write_job(tmp_path / "job")


def by_rows(*words: str) -> bool:
    parser = argparse.ArgumentParser()
    Report().add_arguments(parser)
    return report._by_rows(parser.parse_args(words))


def test_many_ranks_with_rows_are_reported_by_rows(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(job)])
    assert ended.value.code == 0
    assert "This stands on" in capsys.readouterr().out


def test_brief_prices_and_runs_without_rows_get_the_full_report(job: Path) -> None:
    assert by_rows(str(job))
    for words in (["--brief"], ["--price-per-gpu-hour", "2"], ["--price-per-kwh", "1"]):
        assert not by_rows(str(job), *words)
    for rank in WORLD:
        (rank_directory(job, attempt=0, rank=rank) / ROWS_FILE).unlink()
    assert not by_rows(str(job))


@pytest.mark.parametrize("words", [["--brief"], ["--price-per-gpu-hour", "2"], ["--price-per-kwh", "1"]])
def test_rows_with_options_of_the_full_report_are_an_error(
    job: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(job), "--detail", "rows", *words])
    assert ended.value.code == 2
    assert "leave out --format html, --what-if, --brief and prices" in " ".join(capsys.readouterr().err.split())


def test_progress_on_a_terminal_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of processes forks while it is shown."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    before = threading.active_count()
    with read_progress() as progress:
        progress(1, 2)
        assert threading.active_count() == before
