"""Calls are joined with NCCL's operations only where order, function, bytes and identity agree on all ranks."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.timeline.device.nccl import NUM_BYTES, compile_with_clock, plugin_with_clock
from tests.timeline.device.recorded import padded, record
from tests.timeline.device.test_nccl import CASES
from tests.virtual_gpu.actions import Program
from traincope.events import Kind
from traincope.native.build import find_compiler
from traincope.timeline import RankTimeline, Timeline, open_run
from traincope.timeline.collectives.nccl import joined_calls, nccl_runs

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_with_clock(compile_with_clock(tmp_path_factory.mktemp("plugin") / "plugin.so")):
        yield


def recorded(program: Program, folder: Path) -> Timeline:
    return open_run(record(padded(program), folder, nccl=6))


def of_kind(rank: RankTimeline, kind: Kind) -> tuple[NDArray[np.void], NDArray[np.intp]]:
    """The thread with records of this kind, and their positions."""
    records = next(records for records in rank.threads.values() if (records["kind"] == kind).any())
    return records, np.flatnonzero(records["kind"] == kind)


def sequences(timeline: Timeline) -> dict[int, list[int]]:
    """Rank -> counts of its joined calls."""
    return {rank: runs.calls["sequence"].tolist() for rank, runs in nccl_runs(timeline).items()}


def test_each_call_has_its_operation(tmp_path: Path) -> None:
    timeline = recorded(CASES["DDP with three buckets"], tmp_path)
    assert sequences(timeline) == {0: [0, 1, 2], 1: [0, 1, 2]}
    runs = nccl_runs(timeline)
    assert [[part[1:] for part in each] for each in runs[0].identities] == [[("AllReduce", n)] for n in range(3)]
    assert runs[0].identities == runs[1].identities
    assert runs[0].duration_ns.tolist() == [110_000, 30_000, 40_000]


def test_a_call_whose_operation_is_lost_is_not_joined(tmp_path: Path) -> None:
    timeline = recorded(CASES["DDP with three buckets"], tmp_path)
    records, (first, *_) = of_kind(timeline.ranks[1], Kind.NCCL_CALL)
    records["kind"][first] = 0
    assert sequences(timeline) == {0: [1, 2], 1: [1, 2]}


def test_a_collective_is_joined_by_all_ranks_or_none(tmp_path: Path) -> None:
    """NCCL's counts differ: what the dispatcher takes for one collective is not one for NCCL."""
    timeline = recorded(CASES["DDP with three buckets"], tmp_path)
    records, (_, second, _) = of_kind(timeline.ranks[1], Kind.NCCL_CALL)
    records["sequence"][second] = 7
    assert sequences(timeline) == {0: [0, 2], 1: [0, 2]}


def test_other_bytes_than_those_of_the_call_are_not_its_own(tmp_path: Path) -> None:
    timeline = recorded(CASES["DDP with three buckets"], tmp_path)
    records, (first, *_) = of_kind(timeline.ranks[0], Kind.NCCL_CALL)
    records["value"][first] += 1
    assert sequences(timeline) == {0: [1, 2], 1: [1, 2]}


def test_an_operation_that_has_not_ended_is_not_joined(tmp_path: Path) -> None:
    timeline = recorded(CASES["DDP with three buckets"], tmp_path)
    records, (*_, last) = of_kind(timeline.ranks[0], Kind.NCCL_RUN)
    records["end_ns"][last] = -1
    assert sequences(timeline) == {0: [0, 1], 1: [0, 1]}


def test_a_batch_is_joined_by_size_if_nccl_enqueues_it_in_another_order(tmp_path: Path) -> None:
    timeline = recorded(CASES["a batch of two"], tmp_path)
    for rank in timeline.ranks:
        calls, (_, second) = of_kind(rank, Kind.COLLECTIVE)
        operations, (largest, _) = of_kind(rank, Kind.NCCL_CALL)
        calls["value"][second] = operations["value"][largest] = 2 * NUM_BYTES
    runs = nccl_runs(timeline)[0]
    assert (runs.calls["sequence"].tolist(), [each[0][2] for each in runs.identities]) == ([0, 1], [1, 0])


def test_a_batch_of_which_an_operation_is_lost_is_not_guessed(tmp_path: Path) -> None:
    """Its last call alone would explain the operation that is left, and so it has another count than elsewhere."""
    timeline = recorded(CASES["a batch of two"], tmp_path)
    records, (_, second) = of_kind(timeline.ranks[0], Kind.NCCL_CALL)
    records["kind"][second] = 0
    assert joined_calls(timeline.ranks[0]).calls["sequence"].tolist() == [1]
    assert sequences(timeline) == {0: [], 1: []}


def test_an_operation_between_windows_belongs_to_no_call(tmp_path: Path) -> None:
    timeline = recorded(CASES["DDP with three buckets"], tmp_path)
    for rank in timeline.ranks:
        records, (*_, last) = of_kind(rank, Kind.NCCL_CALL)
        records["step"][last] = 98
    assert sequences(timeline) == {0: [0, 1], 1: [0, 1]}
