"""Levels: the records of each, changes from outside and by the recorder itself, and modules at level 2."""

import logging
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import traincope
from traincope.events import Kind, Phase
from traincope.record import probes
from traincope.record.compute.modules import find_blocks
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
    with traincope.run(tmp_path / "run", level=2, throttle=None):
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
            with traincope.run(directory, level=2, throttle=None):
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
    with traincope.run(directory, level=2, throttle=None) as run:
        model = Model()
        train(model, steps)
        for level in (0, 2):
            (directory / "level").write_text(f"{level}\n")
            run.step()
            train(model, between)
        for _ in range(32):
            run.step()
        train(model, steps)
    return only_rank(directory)


def test_the_level_of_a_running_job_is_changed_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LOOK_INTERVAL_NS", 0)
    rank = lower_and_raise_the_level(tmp_path / "run", steps=1, between=1)
    assert len(spans(rank, Phase.FORWARD)) == 2 * 3
    records = rank.thread("main")
    events = records[records["kind"] == Kind.EVENT]
    assert [rank.details[int(event["group"])]["level"] for event in events] == [0, 2]
    assert [int(event["step"]) for event in events] == [2, 32], "lowered at once, raised at a step all ranks agree on"
    assert rank.info.probes["modules"] == "on"


def test_a_level_raised_again_records_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is read twice per boundary, one record per measure, before and after it was off."""
    monkeypatch.setattr(probes, "LOOK_INTERVAL_NS", 0)
    rank = lower_and_raise_the_level(tmp_path / "run", steps=2, between=0)
    records = rank.thread("main")
    memory = records[(records["kind"] == Kind.MEMORY) & (records["phase"] == Phase.NONE)]
    resident = [int(r["step"]) for r in memory if rank.name(int(r["name"])) == "resident"]
    assert len(resident) == len(set(resident))
    assert spans(rank, Phase.BACKWARD).count("layers.0 (Block)") == 4


def test_a_level_file_without_a_level_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LOOK_INTERVAL_NS", 0)
    with traincope.run(tmp_path / "run", throttle=None) as run:
        for text in (b"", b"high", b"-1", b"\xff\xfe2"):
            run.step()
            (tmp_path / "run" / "level").write_bytes(text)
            run.step()
            assert run._probes is not None
            assert run._probes.level == 1
    assert "probes.Probes.check" not in only_rank(tmp_path / "run").info.probes


@given(first=st.integers(-1, 10**6), other=st.integers(-1, 10**6))
def test_ranks_that_see_a_level_at_different_steps_count_from_a_common_step(first: int, other: int) -> None:
    """From the first power of two after both at the latest."""

    def begins(step: int) -> set[int]:
        steps = [probes.next_agreed_step(step)]
        while steps[-1] < 2**22:
            steps.append(probes.following_agreed_step(steps[-1]))
        return set(steps)

    later = max(probes.next_agreed_step(first), probes.next_agreed_step(other))
    assert max(first, other) < min(begins(first) & begins(other)) <= 2 ** later.bit_length()


def test_restarts_of_counting_become_rare() -> None:
    assert [probes.next_agreed_step(step) for step in (-1, 0, 31, 32, 95)] == [32, 32, 32, 64, 96]
    assert [probes.following_agreed_step(step) for step in (32, 64, 96, 1056)] == [64, 128, 128, 1088]


def test_a_recorder_that_is_too_expensive_lowers_its_level_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps of nothing but spans: all the time is the recorder's."""
    with caplog.at_level(logging.WARNING), traincope.run(tmp_path / "run") as run:
        for _ in range(100):
            run.step()
            for _ in range(100):
                with traincope.span("x"):
                    pass
    rank = only_rank(tmp_path / "run")
    assert "traincope records level 0 from now on: its own time was above 0.5 % of the step" in caplog.text
    assert rank.info.probes["collectives"].startswith("off: level 0, its own time")
    assert rank.info.probes["collectives_fallback"].startswith("off: nothing to watch"), "a reason of its own stays"
    steps = rank.thread("main")[rank.thread("main")["kind"] == Kind.STEP]
    assert steps["value"].sum() > 0


def test_a_profiler_and_the_recorder_both_see_the_training(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", level=2, throttle=None), torch.profiler.profile() as profile:
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
