"""The native kernels write the records that the Python hooks write, except that more ends are exact."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import traincope
from tests.distributed.ranks.pool import Pool
from tests.distributed.recorded.test_recorded import make_model, replicated, sharded, train_losses
from tests.native.library import needs_library, using
from tests.record.communication.test_fallback import described, every_call
from traincope.events import NEW_GROUP, OPEN, Flag, Kind
from traincope.report.document.document import to_document
from traincope.report.run_list import list_runs
from traincope.report.sections.recording import recording
from traincope.report.sections.values import sentences
from traincope.timeline import RankTimeline
from traincope.timeline.observation import Recorder

pytestmark = needs_library

NOT_EXACT = int(Flag.DONE_BEFORE_WAIT)
NUM_STEPS = 3


def train(wrap: Callable[[], nn.Module], run: traincope.Run) -> None:
    model = wrap()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        model(torch.ones(4, 32)).square().mean().backward()
        dist.all_reduce(torch.ones(1))  # of the training, on a group that DDP may use too
        optimizer.step()
        optimizer.zero_grad()
        run.step()


def of_ddp(run: traincope.Run) -> None:
    train(replicated, run)


def of_ddp_with_buffers_and_a_hook(run: traincope.Run) -> None:
    """Its buffers are broadcast before each forward. The hook waits for buckets in Python, or lets C++ do it."""

    def waiting(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), group=state, async_op=True)  # type: ignore[arg-type]
        assert work is not None
        work.wait()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    for hook in (waiting, default_hooks.allreduce_hook):
        group = dist.new_group()
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(make_model(), nn.BatchNorm1d(32)), process_group=group
        )
        model.register_comm_hook(group, hook)
        train(lambda model=model: model, run)  # type: ignore[misc]


def of_fsdp(run: traincope.Run) -> None:
    train(sharded, run)


def of_functional_collectives(run: traincope.Run) -> None:
    tensor = torch.ones(8)
    for _ in range(NUM_STEPS):
        functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD))
        functional.wait_tensor(functional.all_gather_single(tensor, 0, dist.group.WORLD))
        for pending in functional.all_reduce_coalesced([tensor, tensor + 1], "sum", dist.group.WORLD):
            functional.wait_tensor(pending)
        run.step()


def of_every_type_of_elements(run: traincope.Run) -> None:
    for kind in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.uint8, torch.int8, torch.complex64),
    ):
        dist.broadcast(torch.ones(2, dtype=kind), src=0)
    dist.broadcast(torch.ones(0), src=0)
    run.step()


def of_groups_and_threads(run: traincope.Run) -> None:
    """Threads with groups of their own, and a new group in the place of a destroyed one."""
    run.step()
    groups = [dist.new_group() for _ in range(2)]

    def reduce(group: dist.ProcessGroup) -> None:
        for _ in range(20):
            dist.all_reduce(torch.ones(2), group=group)

    threads = [threading.Thread(target=reduce, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
        thread.join()
    for _ in range(3):
        group = dist.new_group(group_desc="again")
        dist.all_reduce(torch.ones(2), group=group)
        dist.destroy_process_group(group)
        del group


def of_errors(run: traincope.Run) -> None:
    run.step()
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_gather([torch.empty(3)], torch.ones(2))
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    with pytest.raises(TypeError):
        work.wait("not a timeout")  # type: ignore[arg-type]
    work.wait()


def of_messages_that_nobody_waits_for(run: traincope.Run) -> None:
    rank, held = dist.get_rank(), []
    run.step()
    for tag in range(4):
        if rank == 0:
            held.append(dist.isend(torch.ones(2), dst=1, tag=tag))
        else:
            dist.recv(torch.ones(2), src=0, tag=tag)
    dist.all_reduce(torch.ones(1))


def recorded(directory: str, train: Callable[[traincope.Run], None], native: bool) -> None:
    with using(native=native), traincope.run(directory, budget=None, agent=False) as run:
        train(run)


def both(
    ranks: Pool, tmp_path: Path, train: Callable[[traincope.Run], None]
) -> list[tuple[RankTimeline, RankTimeline]]:
    for native in (True, False):
        ranks.run(recorded, str(tmp_path / str(native)), train, native)
    native_run, python_run = (traincope.open_run(tmp_path / str(native)) for native in (True, False))
    states = [rank.info.probes.get("native") for run in (native_run, python_run) for rank in run.run.ranks]
    assert states == ["on"] * 2 + ["off: TRAINCOPE_NATIVE=off"] * 2
    return list(zip(native_run.ranks, python_run.ranks, strict=True))


def by_thread(rank: RankTimeline, kind: Kind) -> list[int]:
    """Number of records of each thread that has any, of the training thread first."""
    first, *others = sorted(rank.threads, key=lambda thread: thread != "main")
    counts = [int((rank.threads[thread]["kind"] == kind).sum()) for thread in (first, *others)]
    return [counts[0], *sorted(filter(None, counts[1:]))]


def without_count(records: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Drop torch's own counts, which go on from run to run: that of a group, in the tag of its first collective, and
    the number of a new group.
    """
    counted = [(*fields[:4], 0 if fields[2] == 0 else fields[4], *fields[5:]) for fields in records]
    return [(*each[:2], 0, *each[3:]) if str(each[0]).startswith(NEW_GROUP) else each for each in counted]


TRAININGS = (
    of_ddp, of_ddp_with_buffers_and_a_hook, of_fsdp, of_functional_collectives, of_every_type_of_elements,
    of_groups_and_threads, of_errors, of_messages_that_nobody_waits_for,
)  # fmt: skip


@pytest.mark.parametrize("train", TRAININGS)
def test_both_recorders_write_the_same_records(
    two_ranks: Pool, tmp_path: Path, train: Callable[[traincope.Run], None]
) -> None:
    """All fields but times, in the same order in the same threads. Only Python's ends may be bounds."""
    for of_native, of_python in both(two_ranks, tmp_path, train):
        assert [(group.axis, group.ranks) for group in of_native.groups] == [
            (group.axis, group.ranks) for group in of_python.groups
        ]
        for kind in (Kind.COLLECTIVE, Kind.STALL, Kind.SPAN):
            assert without_count(described(of_native, kind)) == without_count(described(of_python, kind))
            assert by_thread(of_native, kind) == by_thread(of_python, kind)
        collectives = of_native.of_kind(Kind.COLLECTIVE)
        is_message = collectives["flags"] & int(Flag.POINT_TO_POINT) > 0
        of_both = (rank.of_kind(Kind.COLLECTIVE)["end_ns"] == OPEN for rank in (of_native, of_python))
        assert len({tuple(is_open[is_message].tolist()) for is_open in of_both}) == 1
        whole = collectives[~is_message]
        assert len(whole) > 0
        assert (whole["end_ns"] != OPEN).all()
        assert (whole["flags"] & NOT_EXACT == 0).all()


@contextmanager
def natively(directory: str) -> Iterator[traincope.Run]:
    with using(native=True), traincope.run(directory, budget=None, agent=False) as run:
        yield run


@pytest.mark.parametrize("wrap", [sharded, replicated])
def test_training_under_the_native_recorder_is_bit_identical(
    two_ranks: Pool, tmp_path: Path, wrap: Callable[[], nn.Module]
) -> None:
    observed = two_ranks.run(train_losses, str(tmp_path / "run"), wrap, natively)
    assert observed == two_ranks.run(train_losses, "", wrap)
    assert {rank.info.probes["native"] for rank in traincope.open_run(tmp_path / "run").run.ranks} == {"on"}


def of_every_call(directory: str, native: bool) -> None:
    with using(native=native):
        every_call(directory, False)


def test_every_operator_of_gloo_is_recorded(two_ranks: Pool, tmp_path: Path) -> None:
    for native in (True, False):
        two_ranks.run(of_every_call, str(tmp_path / str(native)), native)
    native_run, python_run = (traincope.open_run(tmp_path / str(native)) for native in (True, False))
    for of_native, of_python in zip(native_run.ranks, python_run.ranks, strict=True):
        assert len(described(of_python, Kind.COLLECTIVE)) == 23
        for kind in (Kind.COLLECTIVE, Kind.STALL):
            assert described(of_native, kind) == described(of_python, kind)


LATE_SECONDS, NUM_LATE_STEPS = 0.15, 4


def late_with_another_recorder(directory: str, late: int, native: int) -> None:
    """One rank joins each collective late, and it waits later for an asynchronous one than that is complete."""
    rank = dist.get_rank()
    with using(native=rank == native), traincope.run(directory, budget=None, agent=False) as run:
        for _ in range(NUM_LATE_STEPS):
            work = dist.all_reduce(torch.ones(4), async_op=True)
            time.sleep(LATE_SECONDS * (rank == late))
            assert work is not None
            work.wait()
            dist.all_reduce(torch.ones(4))
            run.step()


@pytest.mark.parametrize(("late", "native"), [(0, 0), (1, 0)])
def test_ranks_with_different_recorders_are_compared_all_the_same(
    two_ranks: Pool, tmp_path: Path, late: int, native: int
) -> None:
    """Their collectives match, the rank in time has the wait, and the report names both recorders with the reason."""
    two_ranks.run(late_with_another_recorder, str(tmp_path / "run"), late, native)
    timeline = traincope.open_run(tmp_path / "run")
    first, second = timeline.ranks
    assert described(first, Kind.COLLECTIVE) == described(second, Kind.COLLECTIVE)
    analysis = traincope.analyze(timeline)
    waited_ns = {rank.rank: rank.known("exposed_wait[world]")[0] for rank in analysis.ledger.ranks}
    assert waited_ns[1 - late] > LATE_SECONDS * 1e9 > waited_ns[late]
    document = to_document(analysis)
    shown = [line for line in sentences(document, recording(document)) if "recorded by" in line]
    assert shown == [
        "collectives of rank 0 were recorded by the native recorder",
        "collectives of rank 1 were recorded by the Python hooks, not by the native recorder: TRAINCOPE_NATIVE=off",
    ]
    (listed,) = list_runs(tmp_path)
    assert (listed.recorder, listed.why_python) == (Recorder.BOTH, "TRAINCOPE_NATIVE=off")
