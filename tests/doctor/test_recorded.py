"""What doctor says of a run: recorded here, then damaged by hand."""

import json
import shutil
from pathlib import Path

import pytest

import traincope
from traincope.doctor import Finding, State, examine_run
from traincope.store.launcher import LauncherNote, append_notes, notes_of

DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One rank, one step; its `rank.json` says it is of two."""
    with traincope.run(tmp_path / "run") as recording:
        recording.step()
    return tmp_path / "run"


def change(run: Path, **values: object) -> None:
    """Rewrite values of rank 0's rank.json."""
    card = run / "attempt-000" / "rank-00000" / "rank.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | values))


def not_ok(run: Path) -> list[Finding]:
    return [finding for finding in examine_run(run).findings if finding.state is not State.OK]


def test_a_whole_run_is_healthy_and_only_told_of_probes_above_its_level_or_without_anything_to_watch(run: Path) -> None:
    assert examine_run(run).healthy
    reasons = ("off: needs level 2", "off: needs level 3", "off: nothing to watch")
    assert [finding for finding in not_ok(run) if not finding.said.startswith(reasons)] == []


def test_a_missing_rank_is_bad(run: Path) -> None:
    card = run / "run.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"world_size": 2}))
    (bad,) = [finding for finding in not_ok(run) if finding.state is State.BAD]
    assert bad.said == "rank 0; rank 1 left nothing to read"
    assert not examine_run(run).healthy


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("KeyError", "rank 0 by KeyError"),
        (None, "rank 0 not yet, or was killed; what was recorded until then can be read"),
    ],
)
def test_an_end_that_is_not_clean_is_the_trainings_and_leaves_the_recording_healthy(
    run: Path, ending: str | None, said: str
) -> None:
    change(run, ending=ending)
    assert said in [finding.said for finding in not_ok(run)]
    assert examine_run(run).healthy


@pytest.mark.parametrize(
    ("ending", "exit_code", "said"),
    [("clean", 3, "rank 0 by exit code 3"), (None, -9, "rank 0 by signal 9"), ("KeyError", 1, "rank 0 by KeyError")],
)
def test_an_end_that_the_rank_could_not_see_is_told_as_its_launcher_saw_it(
    run: Path, ending: str | None, exit_code: int, said: str
) -> None:
    change(run, ending=ending)
    append_notes(notes_of(run), [LauncherNote(attempt=0, rank=0, exit_code=exit_code, first=True, at_wall_ns=1)])
    assert said in [finding.said for finding in not_ok(run)]


def test_probes_that_agree_are_one_line_and_those_that_failed_are_bad(run: Path) -> None:
    change(run, probes={"waits": "on", "ddp": "switched off: KeyError: 1"})
    probes = {finding.name: (finding.state, finding.said) for finding in examine_run(run).sections[1].findings}
    assert probes == {"waits": (State.OK, "on"), "ddp": (State.BAD, "switched off: KeyError: 1")}


def test_what_the_recorder_lost_and_what_was_damaged_is_counted(run: Path) -> None:
    change(run, recorder={"names_refused": 1200, "lost_lines": 3, "details_refused": 0})
    (segment,) = (run / "attempt-000" / "rank-00000").glob("main-*.seg")
    segment.write_bytes(segment.read_bytes()[:-8])
    bad = {finding.said: finding.advice for finding in not_ok(run) if finding.state is State.BAD}
    assert list(bad) == [
        "3 names and details on rank 0",
        "1,200 names on rank 0",
        f"{segment} is cut off in the middle of a record; 48 bytes of it are lost",
    ]


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 1)], ids=["whole", "of one host"])
def test_hosts_that_met_agree_within_their_bound(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """The sample as if its stages had been on two hosts."""
    copy = tmp_path / "demo"
    shutil.copytree(DEMO, copy)
    for number in range(4):
        directory = copy / "attempt-000" / f"rank-{number:05d}"
        card = directory / "rank.json"
        card.write_text(json.dumps(json.loads(card.read_text()) | {"boot_id": f"boot {number // 2}"}))
        if number not in ranks:
            shutil.rmtree(directory)
    (clocks,) = [finding for finding in examine_run(copy).findings if finding.name == "clocks"]
    assert clocks.state is State.OK
    expected = "2 hosts; by what they sent each other they agree within" if len(ranks) == 4 else "one for all ranks"
    assert clocks.said.startswith(expected)
