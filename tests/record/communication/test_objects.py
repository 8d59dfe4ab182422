"""Records of what a message contains: objects with the line that sent them, DDP's buffers, types of elements."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from traincope.events import DDP_BUFFERS, ELEMENT_SHIFT, Element, Kind, Phase
from traincope.store import RankRecords, read_run

pytestmark = pytest.mark.usefixtures("native")


def merge_metrics() -> list[object]:
    gathered: list[object] = [None]
    dist.all_gather_object(gathered, {"loss": 1.0})
    return gathered


def recorded(run: Path) -> RankRecords:
    """Record steps of a model with a buffer in bf16, in a group of one rank, each with a collective of objects."""
    dist.init_process_group("gloo", init_method=f"file://{run.parent}/rendezvous", rank=0, world_size=1)
    try:
        with traincope.run(run, agent=False, budget=None) as active:
            module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            model = DistributedDataParallel(module)
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
                assert merge_metrics() == [{"loss": 1.0}]
                active.step()
    finally:
        dist.destroy_process_group()
    (rank,) = read_run(run).ranks
    return rank


def test_messages_have_the_type_of_their_elements_and_a_place_that_names_what_they_are(tmp_path: Path) -> None:
    rank = recorded(tmp_path / "run")
    main = rank.thread("main")
    last = main[main["step"] == 1]
    sent = [
        (rank.names[each["name"]], Element(int(each["flags"]) >> ELEMENT_SHIFT))
        for each in last[last["kind"] == Kind.COLLECTIVE]
    ]
    float32, whole = Element.FLOAT32, Element.INTEGER
    assert ("broadcast", float32) in sent
    assert ("all_reduce", float32) in sent
    assert sent[-2:] == [("all_gather", whole), ("all_gather", Element.BYTE)]
    (objects,) = last[(last["kind"] == Kind.PHASE) & (last["phase"] == Phase.OBJECTS)]
    line = merge_metrics.__code__.co_firstlineno + 2
    assert rank.names[objects["name"]] == f"all_gather_object at test_objects.py:{line} (merge_metrics)"
    gathers = last[(last["kind"] == Kind.COLLECTIVE) & (last["start_ns"] >= objects["start_ns"])]
    assert len(gathers) == 2
    assert (gathers["end_ns"] <= objects["end_ns"]).all()
    (buffers,) = last[last["kind"] == Kind.SPAN]
    assert rank.names[buffers["name"]] == DDP_BUFFERS
