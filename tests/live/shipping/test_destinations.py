"""Where an agent ships, by its environment and by what an earlier agent wrote down."""

from pathlib import Path

from traincope.live.shipping.destinations import destinations, known_destinations

URL = "s3://bucket/runs"


def test_off_ships_nothing_although_an_earlier_attempt_was_shipped(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for word in ("off", "OFF", "0"):
        assert destinations(run, {"TRAINCOPE_SHIP": URL}).url == f"{URL}/run"
        assert destinations(run, {}).url == f"{URL}/run"
        assert not destinations(run, {"TRAINCOPE_SHIP": word}).has_any
        assert not known_destinations(run).has_any
