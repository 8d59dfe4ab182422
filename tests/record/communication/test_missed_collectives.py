"""Checks for kernels that hide ours: a few operators between two steps, and all of them soon."""

from pathlib import Path

import pytest

import traincope
from traincope.record.communication import missed_collectives
from traincope.record.communication.operations import OPERATIONS
from traincope.record.instrumentation import dispatcher
from traincope.record.session import recorder


def test_all_operators_are_checked_first_and_then_in_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[list[str]] = [[]]
    live_kernel = dispatcher.live_kernel

    def recording_live_kernel(operator: str, key: str) -> str:
        checked[-1].append(operator)
        return live_kernel(operator, key)

    monkeypatch.setattr(dispatcher, "live_kernel", recording_live_kernel)
    monkeypatch.setattr(missed_collectives, "LOOK_INTERVAL_NS", 0)
    monkeypatch.setattr(recorder, "CLOCK_INTERVAL_NS", 0)
    every = {f"c10d::{operation.op}" for operation in OPERATIONS}
    rounds = -(-len(every) // missed_collectives.BATCH_SIZE)
    with traincope.run(tmp_path / "run") as run:
        for _ in range(1 + rounds + 1):
            run.step()
            checked.append([])
    first, *later, last = (operators for operators in checked if operators)
    assert set(first) == set(last) == every
    assert {len(batch) for batch in later[:-1]} <= {
        missed_collectives.BATCH_SIZE,
        len(every) % missed_collectives.BATCH_SIZE,
    }
    assert {operator for batch in later[:rounds] for operator in batch} == every
