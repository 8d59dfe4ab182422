"""Scalars of the latest steps: their values, their file, and their way to a tracker of the training."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import traincope
from tests.live.windows import quiet, ranks, records, window
from traincope.analysis import analyze
from traincope.analysis.ledger.coverage import ExcludedSteps
from traincope.integrations import Trackers
from traincope.integrations.training.open_trackers import open_trackers
from traincope.live.serve.latest_scalars import LatestScalars
from traincope.live.window import Window
from traincope.metrics.scalars import Scalars, scalars
from traincope.record.session.identity import this_host
from traincope.store.layout import attempt_directory
from traincope.timeline import build_timeline

VALUES = {
    "traincope/mfu": 0.1,
    "traincope/exposed_communication": 0.2,
    "traincope/overhead": 0.0,
    "traincope/step_seconds": 0.1,
}
"""The two ranks of `windows` wait for 20 ms and 0 ms, and are both in a transfer for 10 ms, of 100 ms."""


@pytest.fixture
def look(tmp_path: Path) -> Window:
    attempt_directory(tmp_path, 0).mkdir()
    return replace(window(records(ranks(0, 1, 2))), run=tmp_path)


def test_scalars_are_means_over_ranks_and_counted_steps(look: Window) -> None:
    assert look.analysis is not None
    latest = scalars(look.analysis)
    assert latest is not None
    assert latest.step == 2
    assert latest.values == pytest.approx(VALUES)


def test_the_warm_up_step_alone_has_none() -> None:
    excluded = ExcludedSteps(warm_up=frozenset({0}), dropped=frozenset(), unwatched=frozenset())
    assert scalars(analyze(build_timeline(records(ranks(0))), excluded_steps=excluded)) is None


def test_overhead_is_the_recorders_own_time_in_the_counted_steps(look: Window) -> None:
    assert look.analysis is not None
    analysis = look.analysis
    measured = analysis.context.measured
    slower = replace(
        measured,
        ranks=tuple(
            replace(rank, steps=tuple(replace(step, own_ns=step.number * 1_000_000) for step in rank.steps))
            for rank in measured.ranks
        ),
    )
    context = type(analysis.context)(analysis.timeline, None, slower)
    latest = scalars(replace(analysis, context=context))
    assert isinstance(latest, Scalars)
    assert latest.values["traincope/overhead"] == pytest.approx(2 * (1 + 2) / (2 * 200))


def test_the_file_has_the_latest_look_and_goes_with_the_agent(look: Window) -> None:
    observer = LatestScalars(host="node 3")
    path = attempt_directory(look.run, 0) / "scalars-node_3.json"
    observer.observe(look)
    observer.observe(quiet(look))
    content = json.loads(path.read_text())
    assert (content["step"], content["values"]) == (2, pytest.approx(VALUES))
    observer.close()
    assert not path.exists()


def test_rank_0_passes_each_look_on_once_and_counts_steps_as_the_trainer_does(look: Window, tmp_path: Path) -> None:
    """The trainer had 40 steps before; the run had one that is not the trainer's."""
    received: list[tuple[dict[str, float], int]] = []
    observer = LatestScalars(host=this_host().name)
    with traincope.run(tmp_path) as run:
        run.step()
        run.step()
        assert run.num_steps == 1
        with Trackers(run, lambda values, step: received.append((values, step)), step=40):
            assert run.place is not None
            observer.observe(replace(look, run=run.place.run, attempt=run.place.attempt))
    assert received == [(pytest.approx(VALUES), 42)]


def test_another_rank_passes_nothing_on(look: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    received: list[object] = []
    with traincope.run(tmp_path) as run:
        run.step()
        run.step()
        with Trackers(run, lambda values, step: received.append((values, step))):
            assert run.place is not None
            LatestScalars(host=this_host().name).observe(replace(look, run=run.place.run, attempt=run.place.attempt))
    assert received == []


def test_a_tracker_that_raises_harms_nothing(look: Window, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    received: list[int] = []

    def refuse(_values: dict[str, float], _step: int) -> None:
        raise ConnectionError("the tracker is not there")

    with traincope.run(tmp_path) as run:
        run.step()
        run.step()
        with Trackers(run, refuse, lambda _, step: received.append(step)):
            assert run.place is not None
            LatestScalars(host=this_host().name).observe(replace(look, run=run.place.run, attempt=run.place.attempt))
    assert received == [2]
    assert "the tracker is not there" in caplog.text


def test_without_a_tracker_no_thread_starts() -> None:
    assert open_trackers() == []
