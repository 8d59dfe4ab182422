"""Programs of virtual GPUs, whose collectives NCCL describes to the plugin: wait and transfer are the programs'."""

import re
import zlib
from collections import Counter
from pathlib import Path

import pytest

import traincope
from tests.native.nccl_profiler.driver import Communicator, Nccl, Truth, needs_plugin, wanted
from tests.native.nccl_profiler.test_run import documented_query
from tests.virtual_gpu.actions import Program
from tests.virtual_gpu.machine import RankRecord, execute
from tests.virtual_gpu.programs import PROGRAMS
from tests.virtual_gpu.truth import transfers_ns
from traincope.tables.query import run_query
from traincope.tables.sources import Sources

pytestmark = [needs_plugin, pytest.mark.usefixtures(wanted.__name__)]

DEVICE_EPOCH_NS = 1_000_000
MESSAGES = {"send", "recv"}


def operations_of(program: Program) -> set[str]:
    return {ran.work.operation for record in execute(program) for ran in record.works if ran.work.group is not None}


BETWEEN = {
    name: program
    for name, program in PROGRAMS.items()
    if not program.untraced and operations_of(program) and MESSAGES.isdisjoint(operations_of(program))
}
"""Programs with collectives and without messages, all of whose ranks are known."""
Key = tuple[int, str, int]
"""Hash of the communicator, function and its count there."""


def hash_of(group: str) -> int:
    return zlib.crc32(group.encode()) << 16


def drive(record: RankRecord) -> dict[tuple[str, int], Key]:
    """Let NCCL report the collectives of a rank, in the order in which they ended. Returns their keys in the table."""
    nccl, communicators, counts, keys = Nccl(6), {}, Counter[tuple[str, str]](), {}
    collectives = [ran for ran in record.works if ran.work.group is not None]
    begun = []
    for ran in collectives:
        group, function = ran.work.group, ran.work.operation
        assert group is not None
        if group.name not in communicators:
            communicators[group.name] = Communicator(
                nccl=nccl, hash=hash_of(group.name), num_ranks=len(group.ranks), rank=group.ranks.index(record.rank)
            )
        sequence = counts[group.name, function]
        counts[group.name, function] += 1
        keys[group.name, ran.position] = hash_of(group.name), function, sequence
        start_ns, end_ns = DEVICE_EPOCH_NS + ran.start_ns, DEVICE_EPOCH_NS + ran.end_ns
        truth = Truth(
            function=function, sequence=sequence, count=1, peer=0, datatype="ncclInt8",
            channels=[(start_ns + 1, end_ns), (start_ns, end_ns - 1)], announced=2,
        )  # fmt: skip
        communicators[group.name].enqueue(truth)
        begun.append((ran, communicators[group.name], truth))
    for _, communicator, truth in sorted(begun, key=lambda each: each[0].end_ns):
        communicator.run_on_device(truth)
    for communicator in communicators.values():
        communicator.end()
    return keys


@pytest.mark.parametrize("name", BETWEEN)
def test_wait_and_transfer_are_those_of_the_program(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program: Program = BETWEEN[name]
    records, keys = execute(program), {}
    monkeypatch.setenv("WORLD_SIZE", str(len(records)))
    for record in records:
        monkeypatch.setenv("RANK", str(record.rank))
        with traincope.run(tmp_path / "run", agent=False):
            keys |= drive(record)
    durations: dict[tuple[str, int], list[int]] = {}
    for ran in (ran for record in records for ran in record.works):
        if ran.work.group is not None:
            durations.setdefault((ran.work.group.name, ran.position), []).append(ran.end_ns - ran.start_ns)
    expected = {
        keys[instance]: (transfer_ns, max(durations[instance]) - (transfer_ns or 0))
        for instance, transfer_ns in transfers_ns(records, frozenset()).items()
    }
    query = re.sub(r" limit \d+", "", documented_query("transfer_ns"))
    rows = run_query([Sources.at(tmp_path / "run", name="run")], query).to_pylist()
    assert {
        (int(row["communicator"], 16), row["function"], row["sequence"]): (row["transfer_ns"], row["wait_ns"])
        for row in rows
    } == expected
    assert len(rows) == len(expected) > 0
