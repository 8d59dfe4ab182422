"""Attempts before the last are read lightly, and whatever of them is damaged costs only itself."""

from pathlib import Path

import pytest

import traincope
from traincope.store import read_run
from traincope.store.launcher import LauncherNote, append_notes, notes_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One rank: three steps and an exception; then, in the same directory, two steps and a clean end."""
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, steps=3, then=lambda: 1 / 0)
    train(tmp_path, steps=2, then=lambda: 0)
    return tmp_path


def train(out: Path, *, steps: int, then) -> None:  # type: ignore[no-untyped-def]
    with traincope.run(out) as recording:
        for _ in range(steps + 1):
            recording.step()
        then()


def rank_of_first(run: Path) -> Path:
    return run / "attempt-000" / "rank-00000"


def test_an_earlier_attempt_is_told_by_its_instants_steps_and_ends(run: Path) -> None:
    whole = read_run(run)
    (first,) = whole.earlier
    assert (first.number, first.num_steps, first.endings) == (0, 3, {0: "ZeroDivisionError"})
    assert (first.clean, first.kept_steps, first.loaded) == (False, None, False)
    assert first.first_step_ns is not None
    assert first.began_ns <= first.first_step_ns < first.last_ns < whole.ranks[0].info.started_wall_ns + 1_000_000_000
    assert abs(first.ended_ns[0] - first.last_ns) < 1_000_000_000
    assert (whole.attempts, whole.last_attempt) == (2, 1)


@pytest.mark.parametrize("damage", ["card", "segment", "names", "all"])
def test_what_is_damaged_in_it_costs_only_itself(run: Path, damage: str) -> None:
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


def test_an_attempt_of_which_the_launcher_saw_a_bad_end_did_not_end_well(tmp_path: Path) -> None:
    """A process that exits with 3 after its run was left has written `clean`."""
    for _ in range(2):
        train(tmp_path, steps=2, then=lambda: 0)
    assert read_run(tmp_path).earlier[0].clean
    append_notes(notes_of(tmp_path), [LauncherNote(attempt=0, rank=0, exit_code=3, first=True, at_wall_ns=1)])
    assert not read_run(tmp_path).earlier[0].clean
