"""Summaries of earlier attempts; damage in one of them affects only that attempt."""

import json
import time
from pathlib import Path

import pytest

import traincope
from traincope.analysis.faults.restarts import end_of_attempt
from traincope.store import read_run
from traincope.store.job.attempts import read_attempt, read_attempts
from traincope.store.job.hang_notices import HangNotice, append_notice
from traincope.store.job.launcher import LauncherNote, append_notes, notes_path

SAME_CLOCK_NS = 600_000_000_000
"""Larger than differences within one test on the wall clock. The monotonic clock counts from boot and is decades
away.
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One rank: three steps and an exception; then, in the same directory, two steps and a clean end."""
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, steps=3, ending=lambda: 1 / 0)
    train(tmp_path, steps=2, ending=lambda: 0)
    return tmp_path


def train(out: Path, *, steps: int, ending) -> None:  # type: ignore[no-untyped-def]
    with traincope.run(out) as recording:
        for _ in range(steps + 1):
            recording.step()
        ending()


def rank_of_first(run: Path) -> Path:
    return run / "attempt-000" / "rank-00000"


def test_a_summary_has_instants_steps_and_endings(run: Path) -> None:
    whole = read_run(run)
    (first,) = whole.earlier
    assert (first.number, first.num_steps, first.endings) == (0, 3, {0: "ZeroDivisionError"})
    assert (first.clean, first.kept_steps, first.loaded) == (False, None, False)
    assert first.first_step_ns is not None
    assert first.began_ns <= first.first_step_ns < first.last_ns
    later_ns = (first.ended_ns[0], whole.ranks[0].info.started_wall_ns)
    assert all(abs(instant_ns - first.last_ns) < SAME_CLOCK_NS for instant_ns in later_ns)
    assert (whole.attempts, whole.last_attempt) == (2, 1)


@pytest.mark.parametrize("damage", ["card", "segment", "names", "all"])
def test_damage_affects_only_the_damaged_part(run: Path, damage: str) -> None:
    rank = rank_of_first(run)
    if damage in ("card", "all"):
        (rank / "rank.json").write_text('{"rank": 0, "end')
    if damage in ("names", "all"):
        (rank / "names.jsonl").unlink()
    if damage in ("segment", "all"):
        (rank / "main-00000.seg").write_bytes(b"nothing")
    whole = read_run(run)
    assert whole.ranks[0].attempt == 1
    assert [attempt.num_steps for attempt in whole.earlier] == ([] if damage in ("segment", "all") else [3])
    assert traincope.analyze(traincope.open_run(run)).goodput is not None


def test_an_attempt_with_a_launcher_note_is_not_clean(tmp_path: Path) -> None:
    """A process that exits with 3 after its run has written `clean`."""
    for _ in range(2):
        train(tmp_path, steps=2, ending=lambda: 0)
    assert read_run(tmp_path).earlier[0].clean
    append_notes(notes_path(tmp_path), [LauncherNote(attempt=0, rank=0, exit_code=3, first=True, at_wall_ns=1)])
    assert not read_run(tmp_path).earlier[0].clean


def test_a_hang_that_went_on_is_not_the_end_of_its_attempt(run: Path) -> None:
    """The agent announced one in the last of three steps, and later one in the step after it."""
    (before,) = read_run(run).earlier
    assert (before.progress.next_steps, before.num_steps) == ({0: 3}, 3)
    over, standing = (
        HangNotice(attempt=0, at_wall_ns=before.last_ns, culprits=(0,), sentence="rank 0", next_step=step)
        for step in (2, 3)
    )
    append_notice(run, over)
    assert end_of(run) == ("exception", None)
    append_notice(run, standing)
    assert end_of(run) == ("hang", standing)


@pytest.mark.parametrize("step", [None, 3])
def test_a_notice_without_a_step_is_judged_by_the_time_of_the_last_step(run: Path, step: int | None) -> None:
    """Of a version before steps had their numbers in notices."""
    (before,) = read_run(run).earlier
    assert before.progress.last_step_ns is not None
    at_ns = before.progress.last_step_ns - 1
    append_notice(run, HangNotice(attempt=0, at_wall_ns=at_ns, culprits=(), sentence="unknown", next_step=step))
    assert end_of(run)[0] == ("exception" if step is None else "hang")


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_culprit_that_went_on_in_its_step_did_not_end_the_attempt_by_a_hang(tmp_path: Path, *, goes_on: bool) -> None:
    """It stands in a span, and is announced. Then it works and runs out of memory, or an exception ends the span."""
    announced_ns: list[int] = []

    def ending() -> None:
        with traincope.span("read a slow file"):
            announced_ns.append(time.time_ns())
            if not goes_on:
                raise TimeoutError
        with traincope.span("work"):
            raise MemoryError

    with pytest.raises(MemoryError if goes_on else TimeoutError):
        train(tmp_path, steps=3, ending=ending)
    train(tmp_path, steps=2, ending=lambda: None)
    (at_ns,) = announced_ns
    append_notice(tmp_path, HangNotice(attempt=0, at_wall_ns=at_ns, culprits=(0,), sentence="rank 0", next_step=3))
    assert end_of(tmp_path)[0] == ("out_of_memory" if goes_on else "hang")


def end_of(run: Path) -> tuple[str, HangNotice | None]:
    """Kind of the end of the first attempt, and the notice that shows it."""
    (before,) = read_run(run).earlier
    return end_of_attempt(before, ())[0].value, before.hang


def test_an_attempt_without_records_hides_no_later_one(run: Path) -> None:
    """As if attempt 0 were the last one: attempt 1 still records after that has begun, and the one between is empty."""
    first, second, empty = run / "attempt-000", run / "attempt-001", run / "nothing"
    empty.mkdir()
    alone = read_attempt(second)
    (cut,) = read_attempts([second, first])
    (hidden,) = read_attempts([second, empty, first])
    assert alone is not None
    assert hidden.last_ns == cut.last_ns < alone.last_ns


def test_an_attempt_knows_the_ranks_that_left_nothing(run: Path) -> None:
    manifest = run / "attempt-000" / "rank-00000" / "rank.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "world_size": 3}))
    attempts = [read_attempt(run / name) for name in ("attempt-000", "attempt-001")]
    assert [attempt.unrecorded for attempt in attempts if attempt is not None] == [(1, 2), ()]
