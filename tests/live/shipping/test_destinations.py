"""Where an agent ships, by its environment and by what an earlier agent wrote down."""

import json
import shutil
from pathlib import Path

import pytest

from traincope.cli.main import main
from traincope.errors import UsageError
from traincope.live.shipping.destinations import destinations, known_destinations
from traincope.record.session.options import Options, resolved_ship
from traincope.store import read_run
from traincope.store.lock import job_name, lock_path, remove_lock, take_lock

DEMO = Path(__file__).parents[3] / "sample_runs" / "demo"

URL = "s3://bucket/runs"


def test_off_ships_nothing_although_an_earlier_attempt_was_shipped(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for word in ("off", "OFF", "0"):
        assert destinations(run, {"TRAINCOPE_SHIP": URL}).url == f"{URL}/run"
        assert destinations(run, {}).url == f"{URL}/run"
        assert not destinations(run, {"TRAINCOPE_SHIP": word}).has_any
        assert not known_destinations(run).has_any


def test_a_url_with_one_slash_is_that_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINCOPE_SHIP", raising=False)
    assert resolved_ship(Options(ship="s3:/bucket/runs")) == URL
    assert destinations(tmp_path, {"TRAINCOPE_SHIP": "s3:/bucket/runs"}).url == f"{URL}/{tmp_path.name}"


def test_a_path_is_not_a_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DEMO, tmp_path / "run")
    with pytest.raises(SystemExit, match=str(UsageError.exit_code)):
        main(["ship", str(tmp_path / "run"), "bucket/runs"])
    assert "bucket/runs is not a URL; give one such as s3://bucket/runs" in capsys.readouterr().err


def test_a_run_that_an_agent_watches_is_not_shipped_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(DEMO, run)
    path = lock_path(job_name(run, attempt=0))
    lock = take_lock(path)
    assert lock is not None
    try:
        with pytest.raises(SystemExit, match=str(UsageError.exit_code)):
            main(["ship", str(run), f"file://{tmp_path}/there"])
    finally:
        remove_lock(path, lock)
    assert f"an agent of this node still watches {run}; wait for its end" in capsys.readouterr().err


def test_only_the_owner_reads_what_is_shipped_to_a_directory(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "run")
    with pytest.raises(SystemExit, match="0"):
        main(["ship", str(tmp_path / "run"), f"file://{tmp_path}/a b"])
    there = tmp_path / "a b" / "run"
    (archive,) = there.rglob("*.zip")
    assert {path.stat().st_mode & 0o777 for path in (there / "run.json", archive)} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (there, *archive.parents[:3])} == {0o700}


def test_a_directory_of_archives_is_read_by_its_path_as_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(DEMO, tmp_path / "run")
    with pytest.raises(SystemExit, match="0"):
        main(["ship", str(tmp_path / "run"), f"file://{tmp_path}/there"])
    here = read_run(tmp_path / "run")
    for place in (f"file://{tmp_path}/there/run", tmp_path / "there" / "run", tmp_path / "there"):
        there = read_run(place)
        assert (there.info, there.missing, there.problems) == (here.info, here.missing, here.problems)
        assert [rank.thread("main").tobytes() for rank in there.ranks] == [
            rank.thread("main").tobytes() for rank in here.ranks
        ]
    capsys.readouterr()
    for place in (f"file://{tmp_path}/there", str(tmp_path / "there")):
        with pytest.raises(SystemExit, match="0"):
            main(["ls", place, "--format", "json"])
        (listed,) = json.loads(capsys.readouterr().out)
        assert (listed["path"], listed["state"], listed["world_size"]) == (f"{place}/run", "done", 4)


def test_records_after_a_round_by_hand_stay_on_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rank ends while the round runs, which has not shipped its last records."""
    run = tmp_path / "local"
    shutil.copytree(DEMO, run)
    assert destinations(run, {"TRAINCOPE_NAMED": str(tmp_path / "run")}).named == tmp_path / "run"
    answers = iter([False])
    monkeypatch.setattr("traincope.cli.commands.ship.is_over", lambda *_, **__: next(answers, True))
    for stays in (True, False):
        with pytest.raises(SystemExit, match="0"):
            main(["ship", str(run)])
        assert run.exists() is stays
