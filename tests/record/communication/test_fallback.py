"""The fallback: without dispatcher operators, hooks on process groups write the same records."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce as known_by_another_name
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

import traincope
from tests.distributed.ranks.pool import Pool
from tests.distributed.recorded.test_recorded import first_line, replicated, sharded, train_losses
from tests.native.library import python_hooks
from traincope.doctor import State, examine_run
from traincope.events import Flag, Kind
from traincope.record.communication.fallback import METHODS
from traincope.record.communication.operations import OPERATIONS
from traincope.record.instrumentation import torch_private
from traincope.report.document.document import to_document
from traincope.report.sections.recording import recording
from traincope.report.sections.values import sentences
from traincope.timeline import RankTimeline, match_instances

LACKING = "_dispatch_keyset_full_after"
UNEQUAL = ~int(Flag.DONE_BEFORE_WAIT)
"""Drop the flag DONE_BEFORE_WAIT, which differs from run to run."""


@contextmanager
def fallen_back(directory: str, *, level: int = 1) -> Iterator[traincope.Run]:
    """Start a run under a torch that lacks a private name."""
    name, run = getattr(torch._C, LACKING), traincope.run(directory, level=level, budget=None)
    with python_hooks(), ExitStack() as leaving:
        delattr(torch._C, LACKING)
        try:
            leaving.enter_context(run)
        finally:
            setattr(torch._C, LACKING, name)
        yield run


def started(directory: str, fall_back: bool):  # type: ignore[no-untyped-def]
    if not directory:
        return nullcontext()
    return fallen_back(directory) if fall_back else traincope.run(directory, budget=None)


def every_call(directory: str, fall_back: bool) -> None:
    """Every collective that gloo has and Python can issue: synchronous, asynchronous, coalesced, messages, direct
    calls.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    group, tensor, many = dist.new_group(), torch.ones(8), [torch.empty(8) for _ in range(size)]
    rows = [torch.ones(8) for _ in range(size)]
    with started(directory, fall_back) as run:
        run.step()
        known_by_another_name(tensor, group=group)
        dist.all_reduce(tensor, async_op=True, group=group).wait()
        dist.broadcast(tensor, src=1, group=group)
        dist.reduce(tensor, dst=0, group=group)
        dist.all_gather(many, tensor, group=group)
        dist.all_gather_single(torch.empty(8 * size), tensor, group=group)
        dist.reduce_scatter(torch.empty(8), rows, group=group)
        dist.reduce_scatter_single(torch.empty(4), tensor, group=group)
        dist.all_to_all_single(torch.empty(8), tensor, group=group)
        dist.gather(tensor, many if rank == 0 else None, dst=0, group=group)
        dist.scatter(tensor, rows if rank == 0 else None, src=0, group=group)
        with dist._coalescing_manager(group):
            dist.all_reduce(tensor, group=group)
            dist.all_reduce(many[0], group=group)
        messages = [dist.P2POp(dist.isend, tensor, 1 - rank, tag=5), dist.P2POp(dist.irecv, many[0], 1 - rank, tag=5)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        if rank == 0:
            dist.send(tensor, dst=1, tag=3)
            dist.recv(tensor)
        else:
            dist.recv(tensor, src=0, tag=3)
            dist.send(tensor, dst=0)
        dist.all_gather_object([None] * size, rank, group=group)
        group.allreduce(tensor).wait()
        group.broadcast(tensor, 1).wait()
        group.allgather(many, tensor).wait()
        dist.barrier(group=group)
        dist.monitored_barrier(group)


def described(rank: RankTimeline, kind: Kind) -> list[tuple[object, ...]]:
    """All fields of each record except its times."""
    return [
        (
            rank.name(int(record["name"])),
            *(int(record[field]) for field in ("group", "sequence", "peer", "tag", "value", "step")),
            int(record["flags"]) & UNEQUAL,
        )
        for record in rank.of_kind(kind)
    ]


def test_the_fallback_writes_the_same_records_as_the_dispatcher_hook(two_ranks: Pool, tmp_path: Path) -> None:
    """No record is missing or doubled, and the same collective is found on both ranks.

    Collectives: 12. Messages: 4, and 2 for an object. Direct calls: 3. Barriers: 2.
    """
    two_ranks.run(every_call, str(tmp_path / "hook"), False)
    two_ranks.run(every_call, str(tmp_path / "fallback"), True)
    hook, fallback = (traincope.open_run(tmp_path / name) for name in ("hook", "fallback"))
    for of_hook, of_fallback in zip(hook.ranks, fallback.ranks, strict=True):
        for kind in (Kind.COLLECTIVE, Kind.STALL):
            assert described(of_fallback, kind) == described(of_hook, kind)
        assert len(described(of_hook, Kind.COLLECTIVE)) == 23
        assert [(group.axis, group.ranks) for group in of_fallback.groups] == [
            (group.axis, group.ranks) for group in of_hook.groups
        ]
    matched = match_instances(fallback).complete
    assert matched.tolist() == match_instances(hook).complete.tolist()
    assert (~matched).sum() == 2, "the two sides of the message that was received from any source"


def seen_and_not(directory: str) -> None:
    """Three collectives and two messages from Python; two functional ones, which C++ issues."""
    import torch.distributed._functional_collectives as functional

    tensor, rank = torch.ones(8), dist.get_rank()
    with fallen_back(directory) as run:
        run.step()
        for _ in range(3):
            dist.all_reduce(tensor)
        for sender in range(2):
            if rank == sender:
                dist.send(tensor, dst=1 - rank)
            else:
                dist.recv(tensor, src=sender)
        for _ in range(2):
            functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD))


def test_missed_collectives_are_counted_and_reported(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(seen_and_not, str(tmp_path / "run"))
    timeline = traincope.open_run(tmp_path / "run")
    state = timeline.run.ranks[0].info.probes["collectives_fallback"]
    assert state == (
        "on, in place of collectives: records what Python issues, not what C++ issues by itself "
        "(functional collectives, DTensor, DDP's buckets); "
        "torch's flight recorder counted 2 more than the 3 recorded"
    )
    document = to_document(traincope.analyze(timeline))
    remark = f"probe collectives_fallback on ranks 0, 1: {state}"
    assert remark in "\n".join(sentences(document, recording(document)))
    finding_by_name = {finding.name: finding for finding in examine_run(tmp_path / "run").findings}
    assert (finding_by_name["collectives_fallback"].state, finding_by_name["collectives_fallback"].fact) == (
        State.NOTE,
        state,
    )
    assert LACKING in finding_by_name["collectives"].fact
    assert finding_by_name["waits"].fact.startswith("on, but not for functional collectives: AttributeError")


@pytest.mark.parametrize(("wrap", "axis"), [(sharded, "fsdp"), (replicated, None)])
def test_training_under_the_fallback_is_bit_identical(
    two_ranks: Pool, tmp_path: Path, wrap: Callable[[], nn.Module], axis: str | None
) -> None:
    """All of FSDP2 is recorded; of DDP, whose reducer is C++, nothing is recorded wrongly."""
    observed = two_ranks.run(train_losses, str(tmp_path / "run"), wrap, fallen_back)
    assert observed == two_ranks.run(train_losses, "", wrap)
    (rank, _) = traincope.open_run(tmp_path / "run").ranks
    gathered = [record for record in rank.of_kind(Kind.COLLECTIVE) if rank.name(int(record["name"])) == "all_gather"]
    assert {rank.axis(int(record["group"])) for record in gathered} == ({axis} if axis else set())


def failing(directory: str, fall_back: bool) -> str:
    with started(directory, fall_back):
        try:
            dist.all_gather([torch.empty(3)], torch.ones(2))
        except (RuntimeError, ValueError) as error:
            return first_line(f"{type(error).__name__}: {error}")
    return ""


def test_an_error_of_the_backend_passes_unchanged_and_marks_the_record(two_ranks: Pool, tmp_path: Path) -> None:
    observed = two_ranks.run(failing, str(tmp_path / "run"), True)
    assert observed == two_ranks.run(failing, "", True)
    assert all(observed)
    for rank in traincope.open_run(tmp_path / "run").ranks:
        assert [int(record["flags"]) & Flag.RAISED for record in rank.of_kind(Kind.COLLECTIVE)] == [int(Flag.RAISED)]


class Inheriting(dist.ProcessGroup):
    """A Python subclass of a process group that overrides nothing."""


class Extending(dist.ProcessGroup):
    calls = 0

    def allreduce(self, *given):  # type: ignore[no-untyped-def, override]
        self.calls += 1
        return super().allreduce(*given)


class Delegating(dist.ProcessGroup):
    def allreduce(self, *given):  # type: ignore[no-untyped-def, override]
        return dist.group.WORLD.allreduce(*given)  # type: ignore[union-attr]


@pytest.fixture
def sending_nothing() -> Iterator[dist.ProcessGroup]:
    """A world of 2 ranks on torch's fake backend.

    Below a hand-made group, gloo's own threads may deadlock with torch's calls into Python, recorded or not.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(("subclass", "calls"), [(Inheriting, None), (Extending, 1), (Delegating, None)])
def test_each_call_of_a_python_subclass_runs_and_is_recorded_once(
    sending_nothing: dist.ProcessGroup, tmp_path: Path, subclass: type[dist.ProcessGroup], calls: int | None
) -> None:
    """Each of its own methods, and both names of a method that has two."""
    group, cpu = subclass(0, 2), torch.device("cpu")
    group._register_backend(cpu, dist.ProcessGroup.BackendType.CUSTOM, sending_nothing._get_backend(cpu))
    tensor, both = torch.ones(2), torch.empty(4)
    with fallen_back(str(tmp_path / "run")) as run:
        run.step()
        group.allreduce([tensor], dist.AllreduceOptions()).wait()
        group.broadcast([tensor], dist.BroadcastOptions()).wait()
        group.all_gather_single(both, tensor).wait()
        group._allgather_base(both, tensor).wait()
        group.barrier().wait()
    (rank,) = traincope.open_run(tmp_path / "run").ranks
    names = [rank.name(int(record["name"])) for record in rank.of_kind(Kind.COLLECTIVE)]
    assert names == ["all_reduce", "broadcast", "all_gather", "all_gather", "barrier"]
    assert getattr(group, "calls", None) == calls


def methods() -> dict[str, object]:
    return {name: value for name, value in vars(dist.ProcessGroup).items() if not name.startswith("__")}


def test_process_groups_are_restored_and_later_patches_stay(tmp_path: Path) -> None:
    before = methods()
    with fallen_back(str(tmp_path / "run")):
        changed = {name for name, value in methods().items() if before[name] is not value}
        ours = dist.ProcessGroup.allreduce
    assert {"allreduce", "send", "barrier", "all_gather_single", "_allgather_base"} <= changed
    assert methods() == before
    try:
        with fallen_back(str(tmp_path / "again")):
            ours = dist.ProcessGroup.allreduce
            dist.ProcessGroup.allreduce = lambda *given: ours(*given)  # type: ignore[method-assign]
            later_patch = vars(dist.ProcessGroup)["allreduce"]
        assert vars(dist.ProcessGroup)["allreduce"] is later_patch
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.full((2,), 3.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0, 3.0]
        dist.destroy_process_group()
    finally:
        dist.ProcessGroup.allreduce = before["allreduce"]  # type: ignore[method-assign, assignment]


def test_a_lower_level_removes_the_fallback(tmp_path: Path) -> None:
    before = methods()
    with fallen_back(str(tmp_path / "run")) as run:
        assert run._probes is not None
        run._probes._set_level(0, why="a test")
        assert methods() == before


def test_every_operator_has_a_method_in_this_torch() -> None:
    assert torch_private.single_tensor_methods() == {
        "_allgather_base": "_allgather_base_",
        "_reduce_scatter_base": "_reduce_scatter_base_",
    }
    assert set(METHODS.values()) == {operation.op for operation in OPERATIONS}
    assert [name for name in METHODS if not hasattr(dist.ProcessGroup, name)] == []
    assert c10d.ProcessGroup is dist.ProcessGroup


def test_torchs_schema_gives_the_position_of_the_async_flag() -> None:
    remark = {operation.op: torch_private.async_position(operation.op) for operation in OPERATIONS}
    assert remark == {operation.op: operation.async_op for operation in OPERATIONS}
