"""Where the dispatcher cannot be stood in front of, process groups are watched from Python: the same records."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from io import StringIO
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn
from torch.distributed import all_reduce as known_by_another_name
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

import traincope
from tests.distributed.pool import Pool
from tests.distributed.test_recorded import first_line, replicated, sharded, train_losses
from traincope.doctor import State, examine_run
from traincope.events import Flag, Kind
from traincope.record import torch_private
from traincope.record.fallback import METHODS
from traincope.record.operations import OPERATIONS
from traincope.report.recording import recording
from traincope.timeline import RankTimeline, match_instances

LACKING = "_dispatch_keyset_full_after"
UNEQUAL = ~int(Flag.DONE_BEFORE_WAIT)
"""Whether something had ended before it was waited for is not the same twice."""


@contextmanager
def fallen_back(directory: str, *, level: int = 1) -> Iterator[traincope.record.run.Run]:
    """A run that begins under a torch which lacks a private name."""
    name, run = getattr(torch._C, LACKING), traincope.run(directory, level=level, throttle=None)
    with ExitStack() as leaving:
        delattr(torch._C, LACKING)
        try:
            leaving.enter_context(run)
        finally:
            setattr(torch._C, LACKING, name)
        yield run


def started(directory: str, fall_back: bool):  # type: ignore[no-untyped-def]
    if not directory:
        return nullcontext()
    return fallen_back(directory) if fall_back else traincope.run(directory, throttle=None)


def every_call(directory: str, fall_back: bool) -> None:
    """All that gloo has and Python can ask for: synchronous, asynchronous, coalesced, in messages, by hand."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group, one, many = dist.new_group(), torch.ones(8), [torch.empty(8) for _ in range(size)]
    rows = [torch.ones(8) for _ in range(size)]
    with started(directory, fall_back) as run:
        run.step()
        known_by_another_name(one, group=group)
        dist.all_reduce(one, async_op=True, group=group).wait()
        dist.broadcast(one, src=1, group=group)
        dist.reduce(one, dst=0, group=group)
        dist.all_gather(many, one, group=group)
        dist.all_gather_single(torch.empty(8 * size), one, group=group)
        dist.reduce_scatter(torch.empty(8), rows, group=group)
        dist.reduce_scatter_single(torch.empty(4), one, group=group)
        dist.all_to_all_single(torch.empty(8), one, group=group)
        dist.gather(one, many if rank == 0 else None, dst=0, group=group)
        dist.scatter(one, rows if rank == 0 else None, src=0, group=group)
        with dist._coalescing_manager(group):
            dist.all_reduce(one, group=group)
            dist.all_reduce(many[0], group=group)
        messages = [dist.P2POp(dist.isend, one, 1 - rank, tag=5), dist.P2POp(dist.irecv, many[0], 1 - rank, tag=5)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        if rank == 0:
            dist.send(one, dst=1, tag=3)
            dist.recv(one)
        else:
            dist.recv(one, src=0, tag=3)
            dist.send(one, dst=0)
        dist.all_gather_object([None] * size, rank, group=group)
        group.allreduce(one).wait()
        group.broadcast(one, 1).wait()
        group.allgather(many, one).wait()
        dist.barrier(group=group)
        dist.monitored_barrier(group)


def described(rank: RankTimeline, kind: Kind) -> list[tuple[object, ...]]:
    """All of each record but its times."""
    return [
        (
            rank.name(int(record["name"])),
            *(int(record[field]) for field in ("group", "sequence", "peer", "tag", "value", "step")),
            int(record["flags"]) & UNEQUAL,
        )
        for record in rank.of_kind(kind)
    ]


def test_its_records_are_those_of_the_dispatchers_hook(two_ranks: Pool, tmp_path: Path) -> None:
    """None is missing, none is there twice, and the same collective is found on both ranks.

    12 collectives, 4 messages, 2 for an object, 3 by hand, 2 barriers.
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
    """Three that Python asks for, and two messages; two functional ones, which C++ issues."""
    import torch.distributed._functional_collectives as functional

    one, rank = torch.ones(8), dist.get_rank()
    with fallen_back(directory) as run:
        run.step()
        for _ in range(3):
            dist.all_reduce(one)
        for sender in range(2):
            if rank == sender:
                dist.send(one, dst=1 - rank)
            else:
                dist.recv(one, src=sender)
        for _ in range(2):
            functional.wait_tensor(functional.all_reduce(one, "sum", dist.group.WORLD))


def test_what_it_misses_is_counted_and_told_by_report_and_doctor(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(seen_and_not, str(tmp_path / "run"))
    timeline = traincope.open_run(tmp_path / "run")
    state = timeline.run.ranks[0].info.probes["collectives_fallback"]
    assert state == (
        "on, in place of collectives: it sees what Python asks process groups for; not what C++ issues by itself "
        "(functional collectives, DTensor, DDP's buckets); "
        "torch's flight recorder counted 2 more than the 3 that it saw"
    )
    console = Console(width=500, file=StringIO())
    for line in recording(traincope.report.to_document(traincope.analyze(timeline))):
        console.print(line)
    told = f"probe collectives_fallback is on, of ranks 0, 1: {state.removeprefix('on, ')}"
    assert told in console.file.getvalue()  # type: ignore[attr-defined]
    found = {finding.name: finding for finding in examine_run(tmp_path / "run").findings}
    assert (found["collectives_fallback"].state, found["collectives_fallback"].said) == (State.NOTE, state)
    assert LACKING in found["collectives"].said
    assert found["waits"].said.startswith("on, but not for functional collectives: AttributeError")


@pytest.mark.parametrize(("wrap", "axis"), [(sharded, "fsdp"), (replicated, None)])
def test_training_under_it_is_bit_identical(
    two_ranks: Pool, tmp_path: Path, wrap: Callable[[], nn.Module], axis: str | None
) -> None:
    """Of FSDP2 everything is seen; of DDP, whose reducer is C++, nothing is taken for something."""
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
        assert [int(record["flags"]) for record in rank.of_kind(Kind.COLLECTIVE)] == [int(Flag.RAISED)]


class Inheriting(dist.ProcessGroup):
    """Somebody's group in Python that overrides nothing."""


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
    """A world of 2 ranks on torch's fake backend: below a hand-made group, gloo's own threads may lock up with torch's
    calls into Python, recorded or not."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(("subclass", "calls"), [(Inheriting, None), (Extending, 1), (Delegating, None)])
def test_each_call_of_a_python_subclass_is_made_and_recorded_once(
    sending_nothing: dist.ProcessGroup, tmp_path: Path, subclass: type[dist.ProcessGroup], calls: int | None
) -> None:
    """Whichever of its methods are its own, and by either name of a method that has two."""
    group, cpu = subclass(0, 2), torch.device("cpu")
    group._register_backend(cpu, dist.ProcessGroup.BackendType.CUSTOM, sending_nothing._get_backend(cpu))
    one, both = torch.ones(2), torch.empty(4)
    with fallen_back(str(tmp_path / "run")) as run:
        run.step()
        group.allreduce([one], dist.AllreduceOptions()).wait()
        group.broadcast([one], dist.BroadcastOptions()).wait()
        group.all_gather_single(both, one).wait()
        group._allgather_base(both, one).wait()
        group.barrier().wait()
    (rank,) = traincope.open_run(tmp_path / "run").ranks
    names = [rank.name(int(record["name"])) for record in rank.of_kind(Kind.COLLECTIVE)]
    assert names == ["all_reduce", "broadcast", "all_gather", "all_gather", "barrier"]
    assert getattr(group, "calls", None) == calls


def methods() -> dict[str, object]:
    return {name: value for name, value in vars(dist.ProcessGroup).items() if not name.startswith("__")}


def test_process_groups_are_restored_and_what_somebody_patched_over_stays_theirs(tmp_path: Path) -> None:
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
            theirs = vars(dist.ProcessGroup)["allreduce"]
        assert vars(dist.ProcessGroup)["allreduce"] is theirs
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.full((2,), 3.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0, 3.0]
        dist.destroy_process_group()
    finally:
        dist.ProcessGroup.allreduce = before["allreduce"]  # type: ignore[method-assign, assignment]


def test_a_level_that_is_lowered_takes_it_off(tmp_path: Path) -> None:
    before = methods()
    with fallen_back(str(tmp_path / "run")) as run:
        assert run._probes is not None
        run._probes._set_level(0, why="a test")
        assert methods() == before


def test_torch_has_the_methods_it_watches_and_each_operator_has_one() -> None:
    assert torch_private.single_tensor_methods() == {
        "_allgather_base": "_allgather_base_",
        "_reduce_scatter_base": "_reduce_scatter_base_",
    }
    assert set(METHODS.values()) == {operation.op for operation in OPERATIONS}
    assert [name for name in METHODS if not hasattr(dist.ProcessGroup, name)] == []
    assert c10d.ProcessGroup is dist.ProcessGroup


def test_torch_tells_where_an_operator_has_whether_its_caller_waits() -> None:
    told = {operation.op: torch_private.async_position(operation.op) for operation in OPERATIONS}
    assert told == {operation.op: operation.async_op for operation in OPERATIONS}
