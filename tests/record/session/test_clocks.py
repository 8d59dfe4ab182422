"""The pairs of wall and monotonic clock, by which the flight recorder's wall times are converted."""

import time
from pathlib import Path

import pytest

import traincope
from traincope.events import Kind
from traincope.record.session import recorder
from traincope.store import read_run


def test_both_clocks_of_a_pair_are_read_at_one_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the recorder does once a second takes 0.2 s here, and lies in no pair."""
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    with traincope.run(tmp_path / "run", agent=False) as run:
        assert run._recorder is not None
        run._recorder.now_and_then(lambda: time.sleep(0.2))
        for _ in range(4):
            run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    records = rank.thread("main")
    clocks = records[records["kind"] == Kind.CLOCK]
    offsets_ns = clocks["start_ns"] - clocks["value"]
    assert len(clocks) >= 3
    assert offsets_ns.max() - offsets_ns.min() < 100_000_000
