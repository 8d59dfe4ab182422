from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import traincope
from traincope.analysis import FaultKind, FindingKind
from traincope.analysis.faults.marks import RAISED
from traincope.events import Kind, Phase
from traincope.store import RankRecords, read_run


def stalls(rank: RankRecords) -> list[str]:
    records = rank.thread("main")
    chosen = records[(records["kind"] == Kind.PHASE) & (records["phase"] == Phase.CHECKPOINT_STALL)]
    assert (chosen["end_ns"] > chosen["start_ns"]).all()
    return [rank.name(int(number)) for number in chosen["name"]]


def events(rank: RankRecords) -> list[str]:
    names = []
    for thread in rank.threads:
        records = rank.thread(thread)
        names += [rank.name(int(number)) for number in records["name"][records["kind"] == Kind.EVENT]]
    return names


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_saves_and_loads_are_stalls_and_an_asynchronous_save_ends_later(tmp_path: Path) -> None:
    state = {"weight": torch.ones(4)}
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    with traincope.run(tmp_path / "run") as run:
        run.step()
        torch.save(state, tmp_path / "plain.pt")
        torch.load(tmp_path / "plain.pt")
        dcp.save(state, checkpoint_id=tmp_path / "sharded")
        future = dcp.async_save(state, checkpoint_id=tmp_path / "beside")
        getattr(future, "upload_completion", future).result()
    dist.destroy_process_group()
    (rank,) = read_run(tmp_path / "run").ranks
    assert stalls(rank) == ["save checkpoint", "load checkpoint", "save checkpoint", "async_save checkpoint"]
    assert events(rank) == ["checkpoint saved"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_save_that_fails_is_no_checkpoint_and_its_error_has_the_failures_of_ranks(tmp_path: Path) -> None:
    """The disk of the second save is full."""
    full = tmp_path / "second"
    full.mkdir()
    (full / "__0_0.distcp").symlink_to("/dev/full")
    state = {"weight": torch.ones(40_000)}
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)

    def train() -> None:
        with traincope.run(tmp_path / "run") as run:
            for folder in (tmp_path / "first", full):
                run.step()
                dcp.save(state, checkpoint_id=folder)

    with pytest.raises(CheckpointException):
        train()
    dist.destroy_process_group()
    analysis = traincope.analyze(traincope.open_run(tmp_path / "run"))
    assert [mark.evidence for mark in analysis.faults if mark.kind is FaultKind.CHECKPOINT] == ["", RAISED]
    (first,) = (finding for finding in analysis.verdict if finding.kind is FindingKind.FAILED_RANK)
    assert "because rank 0 raised OSError: [Errno 28] No space left on device at filesystem.py:" in first.evidence
    assert first.advice.endswith("Restart from the checkpoint of step 0.")


def test_a_save_by_safetensors_is_one_stall_under_any_name(tmp_path: Path) -> None:
    """`early` is the function as a library imported it before the run."""
    early = safetensors.torch.save_file
    with traincope.run(tmp_path / "run") as run:
        run.step()
        for save in (early, safetensors.torch.save_file):
            save({"weight": torch.ones(4)}, tmp_path / "weights")
        assert safetensors.torch.load_file(tmp_path / "weights")["weight"].tolist() == [1.0] * 4
    (rank,) = read_run(tmp_path / "run").ranks
    assert stalls(rank) == ["save checkpoint", "save checkpoint", "load checkpoint"]
    assert safetensors.torch.save_file is early


class AnswersEverything(dict[str, Any]):
    """State that makes what it is asked for, as some configurations do."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.setdefault(name, AnswersEverything())


def test_what_a_load_returns_is_not_looked_at(tmp_path: Path) -> None:
    torch.save(AnswersEverything(seed=1), tmp_path / "state.pt")
    with traincope.run(tmp_path / "run") as run:
        run.step()
        loaded = torch.load(tmp_path / "state.pt", weights_only=False)
    assert loaded == {"seed": 1}
