"""The pairs of wall and monotonic clock, by which the flight recorder's wall times are converted."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import traincope
from traincope.events import Kind
from traincope.record.session import recorder
from traincope.store import read_run

SECOND = 1_000_000_000


def test_both_clocks_of_a_pair_are_read_at_one_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only in what the recorder does once a second, and none of it lies in a pair."""
    now_ns = [time.monotonic_ns()]
    ahead_ns = time.time_ns() - now_ns[0]
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    monkeypatch.setattr(recorder, "monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr(recorder, "time", SimpleNamespace(time_ns=lambda: now_ns[0] + ahead_ns))

    def work() -> None:
        now_ns[0] += SECOND

    with traincope.run(tmp_path / "run", agent=False) as run:
        assert run._recorder is not None
        run._recorder.now_and_then(work)
        for _ in range(4):
            work()
            run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    records = rank.thread("main")
    clocks = records[records["kind"] == Kind.CLOCK][1:]  # the first one begins the segment, with the real clocks
    assert len(set(clocks["start_ns"].tolist())) >= 3
    assert set((clocks["value"] - clocks["start_ns"]).tolist()) == {ahead_ns}
