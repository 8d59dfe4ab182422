"""Where an agent ships, by its environment and by what an earlier agent wrote down."""

import shutil
from pathlib import Path

import pytest

from traincope.cli.main import main
from traincope.errors import UsageError
from traincope.live.shipping.destinations import destinations, known_destinations
from traincope.record.session.options import Options, resolved_ship

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


def test_only_the_owner_reads_what_is_shipped_to_a_directory(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "run")
    with pytest.raises(SystemExit, match="0"):
        main(["ship", str(tmp_path / "run"), f"file://{tmp_path}/a b"])
    there = tmp_path / "a b" / "run"
    modes = {path.stat().st_mode & 0o777 for path in (there, there / "run.json", *there.rglob("rank*"))}
    assert modes == {0o600, 0o700}
