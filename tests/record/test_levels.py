"""Levels: the records of each, changes from outside and by the recorder itself, and modules at level 2."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import traincope
from traincope.events import BLOCK_STEPS, Flag, Kind, Phase
from traincope.record.compute.modules import find_blocks
from traincope.record.session import recorder
from traincope.store import RankRecords, read_run


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).relu()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        traincope.step()


def only_rank(path: Path) -> RankRecords:
    (rank,) = read_run(path).ranks
    return rank


def spans(rank: RankRecords, phase: Phase) -> list[str]:
    records = rank.thread("main")
    chosen = records[(records["kind"] == Kind.SPAN) & (records["phase"] == phase)]
    return [rank.name(int(number)) for number in chosen["name"]]


def test_blocks_are_the_similar_children_of_the_outermost_containers() -> None:
    assert [name for name, _ in find_blocks(Model())] == ["layers.0", "layers.1", "layers.2"]
    assert [name for name, _ in find_blocks(nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU()))] == []


def test_level_2_records_every_block_forward_and_backward_in_order(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", level=2, budget=None):
        train(Model(), 2)
    rank = only_rank(tmp_path / "run")
    names = [f"layers.{number} (Block)" for number in range(3)]
    assert spans(rank, Phase.FORWARD) == names * 2
    assert spans(rank, Phase.BACKWARD) == names[::-1] * 2
    records = rank.thread("main")
    assert (records["end_ns"] >= records["start_ns"]).all()


def test_observing_modules_changes_no_number_and_leaves_no_hook_on_them(tmp_path: Path) -> None:
    def weights(directory: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Model()
        if directory is None:
            train(model, 3)
        else:
            with traincope.run(directory, level=2, budget=None):
                train(model, 3)
        assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())
        return list(model.state_dict().values())

    bare, observed = weights(None), weights(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(bare, observed, strict=True))


def test_level_0_keeps_steps_and_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCOPE_LEVEL", "0")
    with traincope.run(tmp_path / "run"):
        train(Model(), 2)
    rank = only_rank(tmp_path / "run")
    kinds = Counter(Kind(int(kind)) for kind in rank.thread("main")["kind"])
    assert kinds[Kind.STEP] == 3
    assert kinds[Kind.PHASE] >= 8
    assert kinds[Kind.MEMORY] == 0
    assert rank.info.probes["collectives"] == "off: needs level 1, this run records level 0"


def lower_and_raise_the_level(directory: Path, *, steps: int, between: int) -> RankRecords:
    with traincope.run(directory, level=2, budget=None) as run:
        model = Model()
        train(model, steps)
        for level in (0, 2):
            (directory / "level").write_text(f"{level}\n")
            run.step()
            train(model, between)
        for _ in range(BLOCK_STEPS):
            run.step()
        train(model, steps)
    return only_rank(directory)


def test_the_level_of_a_running_job_is_changed_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    rank = lower_and_raise_the_level(tmp_path / "run", steps=1, between=1)
    assert len(spans(rank, Phase.FORWARD)) == 2 * 3
    records = rank.thread("main")
    events = records[records["kind"] == Kind.EVENT]
    assert [rank.details[int(event["group"])]["level"] for event in events] == [0, 2]
    assert [int(event["step"]) for event in events] == [2, 4]
    assert rank.info.probes["modules"] == "on"


def test_a_level_raised_again_records_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is read twice per boundary, one record per measure, before and after it was off."""
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    rank = lower_and_raise_the_level(tmp_path / "run", steps=2, between=0)
    records = rank.thread("main")
    memory = records[(records["kind"] == Kind.MEMORY) & (records["phase"] == Phase.NONE)]
    resident = [int(r["step"]) for r in memory if rank.name(int(r["name"])) == "resident"]
    assert len(resident) == len(set(resident))
    assert spans(rank, Phase.BACKWARD).count("layers.0 (Block)") == 4


def test_a_level_file_without_a_level_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    with traincope.run(tmp_path / "run", budget=None) as run:
        for text in (b"", b"high", b"-1", b"\xff\xfe2"):
            run.step()
            (tmp_path / "run" / "level").write_bytes(text)
            run.step()
            assert run._probes is not None
            assert run._probes.level == 1
    assert not any(name.startswith("probes.Probes") for name in only_rank(tmp_path / "run").info.probes)


def test_an_expensive_recorder_records_detail_in_windows_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of nothing but spans and blocks: all the time is the recorder's."""
    monkeypatch.delenv("TRAINCOPE_BUDGET")
    with caplog.at_level(logging.WARNING), traincope.run(tmp_path / "run", level=2, run_id="sampled"):
        train(Model(), 400)
    rank = only_rank(tmp_path / "run")
    records = rank.thread("main")
    steps = records[records["kind"] == Kind.STEP]
    detailed = steps["step"][steps["flags"] & Flag.DETAILED > 0]
    spans_in = np.unique(records["step"][records["kind"] == Kind.SPAN])
    assert caplog.messages == []
    assert BLOCK_STEPS <= len(detailed) < 200
    assert set(detailed.tolist()) <= set(spans_in.tolist())
    leading_in = sorted(set(spans_in.tolist()) - set(detailed.tolist()))
    assert all(step % BLOCK_STEPS == 0 and step - 1 not in detailed for step in leading_in)
    phases = np.unique(records["step"][records["kind"] == Kind.PHASE])
    assert set(phases.tolist()) >= set(range(400)), "phases are recorded in every step"
    assert rank.info.probes["collectives"] == "on"


def test_a_profiler_and_the_recorder_both_see_the_training(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", level=2, budget=None), torch.profiler.profile() as profile:
        train(Model(), 2)
    assert any("mm" in event.key for event in profile.key_averages())
    assert len(spans(only_rank(tmp_path / "run"), Phase.FORWARD)) == 6


def test_memory_is_recorded_after_each_phase_and_step(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run"):
        train(Model(), 2)
    rank = only_rank(tmp_path / "run")
    records = rank.thread("main")[rank.thread("main")["kind"] == Kind.MEMORY]
    resident = [r for r in records if rank.name(int(r["name"])) == "resident"]
    phases = [Phase(int(r["phase"])) for r in resident if r["step"] == 0]
    assert phases == [Phase.NONE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert all(2**24 < r["value"] < 2**40 for r in resident)
