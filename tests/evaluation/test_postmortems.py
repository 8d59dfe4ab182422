"""The sample runs of published post-mortems have the published figures."""

import csv
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evaluation.postmortems.build import BLOOM_STEP_SECONDS, FACTS, LLAMA_CAUSES, RUNS, build
from traincope import analyze, open_run
from traincope.analysis import Reliability
from traincope.analysis.reliability.logbooks import logged_stretches
from traincope.analysis.reliability.rolling import productive_between
from traincope.store import Logbook

SAMPLES = Path(__file__).parents[2] / "sample_runs"
HOUR_NS = 3_600_000_000_000
DAY_NS = 24 * HOUR_NS


def job(name: str) -> tuple[Reliability, Logbook]:
    timeline = open_run(SAMPLES / name)
    result = analyze(timeline).reliability
    assert result is not None
    assert timeline.run.logbook is not None
    return result, timeline.run.logbook


@pytest.mark.parametrize("name", RUNS)
def test_the_script_makes_the_committed_run(name: str, tmp_path: Path) -> None:
    build(name, tmp_path / name)
    made = sorted(path.name for path in (tmp_path / name).iterdir())
    assert made == sorted(path.name for path in (SAMPLES / name).iterdir())
    for file in made:
        assert (tmp_path / name / file).read_text() == (SAMPLES / name / file).read_text(), file


def test_the_runs_of_opt_fill_69_percent_of_their_time() -> None:
    """17 November to 16 December 2021: 69 %; 49 % before the restart of 3 December, 94 % from then on.

    Each border is read off a chart, +- 0.5 h. The largest error of the whole share is 26 times an hour over 710 h.
    """
    result, book = job("opt-175b")
    assert result.running_ratio == pytest.approx(0.69, abs=0.005)
    assert result.elapsed_ns / DAY_NS == pytest.approx(29.6, abs=0.05)
    assert book.start_ns is not None
    december_ns = round(datetime(2021, 12, 3, 13, 36, tzinfo=UTC).timestamp()) * 10**9
    stretches, end_ns = logged_stretches(book), book.start_ns + book.elapsed_ns
    assert productive_between(stretches, book.start_ns, december_ns) == pytest.approx(0.49, abs=0.005)
    assert productive_between(stretches, december_ns, end_ns) == pytest.approx(0.94, abs=0.005)


def test_what_the_list_of_opt_leaves_open_stays_unknown() -> None:
    """One interruption between two runs, most without a stored cause. Overlapping rows and those of other times do not
    count, and the time of the lost steps is in no source.
    """
    result, book = job("opt-175b")
    assert (result.num_interruptions, len(book.runs)) == (25, 26)
    assert {cause.cause: cause.count for cause in result.causes} == {"unknown": 22, "divergence": 3}
    assert len(book.notes) == 88 - 23
    assert (result.productive_ratio, result.saves, result.cadence) == (None, None, None)
    assert sum(each.restart_ns or 0 for each in result.interruptions) == result.elapsed_ns - (result.running_ns or 0)
    assert sorted(each.lost_steps for each in result.interruptions if each.lost_steps is not None) == [250, 800]


@pytest.mark.parametrize(("name", "interruptions", "notes"), [("opt-175b", 25, 65), ("bloom-176b", 15, 29)])
def test_all_entries_of_a_list_are_in_the_fault_stream_with_their_causes(
    name: str, interruptions: int, notes: int
) -> None:
    timeline = open_run(SAMPLES / name)
    with (SAMPLES / name / "logbook.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] in ("interruption", "note")]
    faults = analyze(timeline).faults
    kinds = [fault.kind.value for fault in faults]
    assert (kinds.count("interruption"), kinds.count("note")) == (interruptions, notes)
    causes = [re.findall(r"cause ([a-z ]+?)(?: \(|$)", fault.what) for fault in faults]
    assert sorted(cause for (cause,) in causes) == sorted(row["cause"].replace("_", " ") for row in rows)
    assert sum(not fault.timed for fault in faults) == sum(not row["start"] for row in rows)
    times = [fault.at_ns for fault in faults if fault.timed]
    assert times == sorted(times)


def test_the_crash_of_bloom_lost_248_steps() -> None:
    """21 March 2022: 7.3 h of work, two steps before a save that came after each 250; a step took 105.2 s."""
    result, _ = job("bloom-176b")
    (crash,) = (each for each in result.interruptions if each.lost_steps is not None)
    assert (crash.cause, crash.lost_steps, crash.lost_ns) == ("gpu", 248, round(7.3 * HOUR_NS))
    assert crash.at_ns == round(datetime(2022, 3, 21, 12, 34, tzinfo=UTC).timestamp()) * 10**9
    assert not crash.to_the_day
    assert abs(crash.lost_ns - 248 * BLOOM_STEP_SECONDS * 1e9) < 2 * BLOOM_STEP_SECONDS * 1e9


def test_the_hangs_of_bloom_lost_35_hours() -> None:
    """18 h at the end of April, 6 h and 11 h in May; the second hang of April is in the 18 h."""
    result, _ = job("bloom-176b")
    (lost,) = (entry for entry in result.badput if entry.part == "lost" and entry.cause == "hang")
    assert (lost.ns, lost.unknown) == ((18 + 6 + 11) * HOUR_NS, 1)


def test_the_effective_ratio_of_bloom_follows_from_its_steps() -> None:
    """0.87 is stated for 18 March to 28 June. The list has dated steps from 24 March on: 17,235 to 85,376."""
    result, _ = job("bloom-176b")
    steps_ns = (85_376 - 17_235) * BLOOM_STEP_SECONDS * 1e9
    assert result.productive_ratio == pytest.approx(steps_ns / (96 * DAY_NS))
    assert (result.productive_low_ratio, result.productive_high_ratio) == (
        pytest.approx(steps_ns / (97 * DAY_NS)),
        pytest.approx(steps_ns / (95 * DAY_NS)),
    )
    assert result.productive_low_ratio < 0.87 < result.productive_high_ratio


def test_an_incomplete_list_gives_no_mean_time_between_interruptions() -> None:
    result, _ = job("bloom-176b")
    assert (result.mtbf, result.mtbf_reason) == (None, "the list does not have all interruptions of its period")


def test_llama_3_was_interrupted_419_times_in_54_days() -> None:
    """3.09 h of elapsed time between two. The running time is unknown."""
    result, _ = job("llama3-405b")
    assert (result.num_interruptions, result.elapsed_ns) == (419, 54 * DAY_NS)
    assert result.mtbf is not None
    assert result.mtbf.ns is not None
    assert round(result.mtbf.ns / HOUR_NS, 2) == 3.09
    assert not result.mtbf.running
    assert (result.running_ns, result.productive_ratio) == (None, None)


def test_the_cause_table_of_llama_3_is_the_printed_one_with_one_correction() -> None:
    """148 of 419 is 35.3 %, where 30.1 % is printed. All other shares are as printed."""
    result, _ = job("llama3-405b")
    shares = {cause.cause: (cause.count, round(100 * cause.ratio, 1)) for cause in result.causes}
    with (FACTS / "llama3_interruptions.csv").open(newline="") as file:
        printed = {LLAMA_CAUSES[row["component"]]: row for row in csv.DictReader(file)}
    assert shares.pop("gpu") == (148, 35.3)
    assert printed.pop("gpu")["percent_published"] == "30.1"
    assert shares == {cause: (int(row["count"]), float(row["percent_published"])) for cause, row in printed.items()}
