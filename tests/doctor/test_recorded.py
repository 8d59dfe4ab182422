"""Checks of a recorded run: recorded here, then damaged by hand."""

import json
import shutil
from pathlib import Path

import pytest

import traincope
from traincope.doctor import Finding, State, examine_run
from traincope.events import BLOCK_STEPS
from traincope.record.session import sampling
from traincope.store.job.launcher import LauncherNote, append_notes, notes_path

DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one rank and one step."""
    with traincope.run(tmp_path / "run") as recording:
        recording.step()
    return tmp_path / "run"


def change(run: Path, **values: object) -> None:
    """Change values in rank 0's rank.json."""
    manifest = run / "attempt-000" / "rank-00000" / "rank.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | values))


def not_ok(run: Path) -> list[Finding]:
    return [finding for finding in examine_run(run).findings if finding.state is not State.OK]


def test_a_healthy_run_has_notes_only_about_higher_levels_and_absent_hardware(run: Path) -> None:
    assert examine_run(run).healthy
    reasons = ("off: needs level 2", "off: needs level 3", "off: nothing to watch")
    assert [finding for finding in not_ok(run) if not finding.fact.startswith(reasons)] == []


def test_a_missing_rank_is_bad(run: Path) -> None:
    manifest = run / "run.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"world_size": 2}))
    (bad,) = [finding for finding in not_ok(run) if finding.state is State.BAD]
    assert bad.fact == "rank 0; rank 1 left no records"
    assert not examine_run(run).healthy


def test_a_rank_that_may_not_be_read_is_bad(run: Path) -> None:
    manifest = run / "run.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"world_size": 2}))
    (run / "attempt-000" / "rank-00001" / "rank.json").mkdir(parents=True)
    present = [finding.fact for finding in not_ok(run) if finding.state is State.BAD and finding.name == "present"]
    assert present == ["rank 0; rank 1 may not be read"]


@pytest.mark.parametrize(
    ("ending", "fact"),
    [
        ("KeyError", "rank 0 by KeyError"),
        (None, "rank 0: no end recorded, still running or killed; the records until then can be read"),
    ],
)
def test_a_training_that_failed_leaves_the_recording_healthy(run: Path, ending: str | None, fact: str) -> None:
    change(run, ending=ending)
    assert fact in [finding.fact for finding in not_ok(run)]
    assert examine_run(run).healthy


@pytest.mark.parametrize(
    ("ending", "exit_code", "fact"),
    [("clean", 3, "rank 0 by exit code 3"), (None, -9, "rank 0 by signal 9"), ("KeyError", 1, "rank 0 by KeyError")],
)
def test_an_end_that_the_rank_did_not_record_is_the_launchers_exit_code(
    run: Path, ending: str | None, exit_code: int, fact: str
) -> None:
    change(run, ending=ending)
    append_notes(notes_path(run), [LauncherNote(attempt=0, rank=0, exit_code=exit_code, first=True, at_wall_ns=1)])
    assert fact in [finding.fact for finding in not_ok(run)]


def test_probes_with_equal_states_share_a_line_and_failed_probes_are_bad(run: Path) -> None:
    change(run, probes={"waits": "on", "ddp": "switched off: KeyError: 1"})
    probes = {finding.name: (finding.state, finding.fact) for finding in examine_run(run).sections[1].findings}
    assert probes == {"waits": (State.OK, "on"), "ddp": (State.BAD, "switched off: KeyError: 1")}


def test_lost_and_damaged_records_are_counted(run: Path) -> None:
    change(run, recorder={"names_refused": 1200, "lost_lines": 3, "details_refused": 0})
    (segment,) = (run / "attempt-000" / "rank-00000").glob("main-*.seg")
    segment.write_bytes(segment.read_bytes()[:-8])
    bad = {finding.fact: finding.advice for finding in not_ok(run) if finding.state is State.BAD}
    assert list(bad) == [
        "3 names and details on rank 0",
        "1,200 names on rank 0",
        f"{segment} is cut off in the middle of a record; 48 bytes of it are lost",
    ]


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 1)], ids=["whole", "of one host"])
def test_clocks_of_hosts_that_communicate_agree_within_a_bound(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """The sample run with its stages on two hosts."""
    copy = tmp_path / "demo"
    shutil.copytree(DEMO, copy)
    for number in range(4):
        directory = copy / "attempt-000" / f"rank-{number:05d}"
        manifest = directory / "rank.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"boot_id": f"boot {number // 2}"}))
        if number not in ranks:
            shutil.rmtree(directory)
    (clocks,) = [finding for finding in examine_run(copy).findings if finding.name == "clocks"]
    assert clocks.state is State.OK
    expected = "2 hosts; their clocks agree within" if len(ranks) == 4 else "one clock for all ranks"
    assert clocks.fact.startswith(expected)


def test_the_sampling_of_a_run_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of four is a window, besides the first."""
    monkeypatch.setenv("TRAINCOPE_BUDGET", "0.01")
    monkeypatch.setattr(sampling, "needed_halvings", lambda *_, **__: 2)
    monkeypatch.setattr(sampling, "FIRST_BLOCKS", 0)
    with traincope.run(tmp_path / "run") as recording:
        for _ in range(8 * BLOCK_STEPS):
            recording.step()
    (finding,) = [finding for finding in not_ok(tmp_path / "run") if finding.name == "sampling"]
    assert finding.state is State.NOTE
    assert finding.fact.endswith(
        "have detail (collectives, waits, actions); the recorder's budget is 1.0 % of step time"
    )
    assert examine_run(tmp_path / "run").healthy
