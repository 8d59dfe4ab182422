"""Ranks that a signal ends: what the others write, and what the agent notes."""

import signal
from pathlib import Path

import pytest

from tests.live.processes import agents_of, start_rank, until
from tests.live.recorded import rank_of
from traincope.analysis import analyze
from traincope.analysis.faults.stacks import training_thread
from traincope.store import read_run
from traincope.store.layout import BELL_FILE, FLIGHT_FILE, STACKS_FILE
from traincope.timeline import build_timeline


def test_the_other_ranks_write_their_stacks_and_flight_recorder_once_one_is_killed(tmp_path: Path) -> None:
    out, stop = tmp_path / "run", tmp_path / "stop"
    ranks = [start_rank(out, stop, rank=rank, ranks=2, with_torch=True) for rank in range(2)]
    try:
        until(lambda: all((rank_of(out, rank) / BELL_FILE).exists() for rank in range(2)), "their bells")
        until(lambda: (rank_of(out, 0) / "rows.jsonl").exists(), "the agent")
        assert not (rank_of(out, 0) / FLIGHT_FILE).exists()
        ranks[1].kill()
        until(lambda: (rank_of(out, 0) / FLIGHT_FILE).exists(), "the flight recorder of the other")
        stop.touch()
        assert ranks[0].wait(timeout=100) == 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert not (rank_of(out, 1) / FLIGHT_FILE).exists()
    assert not (rank_of(out, 1) / STACKS_FILE).exists()
    assert training_thread((rank_of(out, 0) / STACKS_FILE).read_text()) != ()
    until(lambda: not agents_of(out), "the agent's end")


@pytest.mark.parametrize(
    ("number", "what"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGSEGV, "Segmentation fault (SIGSEGV)")], ids=str
)
def test_the_agent_notes_the_signal_that_ended_a_rank(tmp_path: Path, number: signal.Signals, what: str) -> None:
    """The rank has no handler and keeps no descriptor for it. Its parent asks for its status later."""

    out = tmp_path / "run"
    rank = start_rank(out, tmp_path / "stop", rank=0, ranks=1)
    try:
        until(lambda: (rank_of(out) / "rows.jsonl").exists(), "the agent")
        rank.send_signal(number)
        until(lambda: list(rank_of(out).glob("signal-*")) != [], "the note")
    finally:
        rank.kill()
        rank.communicate()
    until(lambda: not agents_of(out), "the agent's end")
    (end,) = (fault for fault in analyze(build_timeline(read_run(out))).faults if fault.kind == "signal")
    assert (end.ranks, end.what) == ((0,), what)
