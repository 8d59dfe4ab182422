"""How kernels that hide ours are looked for between steps: little at a time, and all of them soon."""

from pathlib import Path

import pytest

import traincope
from traincope.record import dispatcher, unseen
from traincope.record.operations import OPERATIONS


def test_all_operators_are_looked_at_first_then_a_few_between_two_steps_and_soon_all_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[list[str]] = [[]]
    live_kernel = dispatcher.live_kernel

    def seen(operator: str, key: str) -> str:
        looked[-1].append(operator)
        return live_kernel(operator, key)

    monkeypatch.setattr(dispatcher, "live_kernel", seen)
    monkeypatch.setattr(unseen, "LOOK_INTERVAL_NS", 0)
    every = {f"c10d::{operation.op}" for operation in OPERATIONS}
    rounds = -(-len(every) // unseen.FEW)
    with traincope.run(tmp_path / "run") as run:
        for _ in range(1 + rounds + 1):
            run.step()
            looked.append([])
    first, *later, last = (one for one in looked if one)
    assert set(first) == set(last) == every
    assert {len(few) for few in later[:-1]} <= {unseen.FEW, len(every) % unseen.FEW}
    assert {operator for few in later[:rounds] for operator in few} == every
