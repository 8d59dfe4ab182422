"""A training goes on after an exception of its own that was raised inside a hook, and so does its record."""

import sys
from opcode import opname
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

import traincope
from traincope.events import OPEN, Kind, Phase
from traincope.store.reading import read_run

STRIDE = 4
"""Interrupt a step at one place in so many, and the next step at a later place."""
HOOKS = str(Path(traincope.__file__).parent)


class Preempted(Exception):
    pass


class Interruption:
    """A trace function that raises at the nth place of a step where Python calls signal handlers in the recorder."""

    def __init__(self, place: int) -> None:
        self.places_left = place
        self.previous: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call" and frame.f_back in self.previous:
            self.previous[frame.f_back] = ""  # the return from a Python function is no such place
        if not frame.f_code.co_filename.startswith(HOOKS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            before = self.previous.get(frame, "")
            self.previous[frame] = opname[frame.f_code.co_code[frame.f_lasti]]
            self.places_left -= before.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
            if self.places_left == 0:
                raise Preempted
        return self


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_the_rest_of_a_run_is_recorded_after_interruptions_anywhere_in_the_hooks(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    arrived, place = 0, 0
    with traincope.run(tmp_path / "run", level=2):
        for _ in range(3):
            train(model, optimizer)
        while arrived == place // STRIDE:
            place += STRIDE
            sys.settrace(Interruption(place))
            try:
                train(model, optimizer)
            except Preempted:
                arrived += 1
            finally:
                sys.settrace(None)
                torch.set_grad_enabled(True)  # torch's optimizers leave it off if their own code is interrupted
        for _ in range(3):
            train(model, optimizer)
    assert arrived > 10
    (rank,) = read_run(tmp_path / "run").ranks
    records = np.concatenate([segment.records for segment in rank.segments])
    phases = np.sort(records[records["kind"] == Kind.PHASE], order="start_ns")
    assert not (phases["end_ns"] == OPEN).any()
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        last_three = phases[phases["phase"] == phase][-3:]
        assert len(set(last_three["step"])) == 3
