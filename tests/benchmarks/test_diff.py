"""`make bench-diff` fails above the level of the test, and its page has what it wrote."""

import pytest

from benchmarks import diff
from benchmarks.judging import Judged
from evaluation.written import written_table


def test_noise_that_exceeds_the_level_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stretches of 50 slow steps fill runs of 50: about 10 % of 400 pairs are called different."""
    monkeypatch.setattr(diff, "PAIRS", 400)
    monkeypatch.setattr(diff, "POWER_PAIRS", 0)
    monkeypatch.setattr(diff, "LENGTHS", ((50, 50),))
    monkeypatch.setattr(diff, "KINDS", diff.BEYOND[:1])
    assert diff.main([]) == 1
    assert Judged.MISSED.value in capsys.readouterr().out


def test_few_pairs_do_not_show_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """No false alarm in 100 pairs is compatible with a rate of 5 %."""
    monkeypatch.setattr(diff, "PAIRS", 100)
    assert diff.Rate(tested=100, different=0, found=None).judged is Judged.NOT_SHOWN


def test_the_page_has_every_kind_of_noise_and_the_number_of_pairs() -> None:
    table = written_table(diff.PAGE, "diff")
    named = [line.split("|")[1].strip() for line in table if line.startswith("| ")]
    assert [name for name in named if name != "noise"] == [kind.name for kind in (*diff.KINDS, *diff.BEYOND)]
    assert any(line.startswith(f"{diff.PAIRS:,} pairs") and " 0 of " in line for line in table)
