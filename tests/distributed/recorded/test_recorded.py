"""Recordings of real trainings, compared with injected delays and known sizes."""

import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool
from traincope.analysis import Analysis, RankLedger
from traincope.events import OPEN, Flag, Kind
from traincope.record.instrumentation.torch_private import autograd_engine
from traincope.record.run import Run
from traincope.timeline import match_instances

LATE_NS = 150_000_000
STEPS = 6
LATE_RANK = 1


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))


def sharded() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    model = make_model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def replicated() -> nn.Module:
    """DDP on a group of its own: a mesh of another test may still name the world's group."""
    return DistributedDataParallel(make_model(), process_group=dist.new_group())


def train(directory: str, wrap: Callable[[], nn.Module], late_ns: int) -> None:
    """Steps in which one rank sleeps before its first collective: before forward (FSDP) or backward (DDP)."""
    with traincope.run(directory) as run:
        model = wrap()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            if dist.get_rank() == LATE_RANK:
                time.sleep(late_ns / 1e9)
            model(torch.ones(4, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step()


def analysed(directory: Path) -> Analysis:
    return traincope.analyze(traincope.open_run(directory))


def a_step(rank: RankLedger, term: str) -> float:
    """Mean nanoseconds of a term per counted step."""
    return (rank.total(term) or 0) / rank.num_counted


@pytest.mark.parametrize(("wrap", "axis"), [(sharded, "fsdp"), (replicated, "dp")])
def test_a_rank_that_is_late_makes_the_others_wait_on_its_axis(
    two_ranks: Pool, tmp_path: Path, wrap: Callable[[], nn.Module], axis: str
) -> None:
    two_ranks.run(train, str(tmp_path / "run"), wrap, LATE_NS)
    analysis = analysed(tmp_path / "run")
    prompt, late = analysis.ledger.ranks
    waited_ns = prompt.terms[f"exposed_wait[{axis}]"]
    assert waited_ns is not None
    assert waited_ns.max() >= 0.9 * LATE_NS  # in other steps a busy machine may delay the other rank too
    assert a_step(late, "unattributed") >= LATE_NS
    assert a_step(late, f"exposed_wait[{axis}]") < a_step(prompt, f"exposed_wait[{axis}]")
    assert prompt.ambiguous_waits_ns.sum() == late.ambiguous_waits_ns.sum() == 0
    assert late.rank == LATE_RANK
    assert analysis.stragglers.named == ()  # five steps do not tell a slow rank from noise


@pytest.mark.timing
@pytest.mark.parametrize(("wrap", "axis"), [(sharded, "fsdp"), (replicated, "dp")])
def test_the_wait_for_a_late_rank_is_its_delay(
    two_ranks: Pool, tmp_path: Path, wrap: Callable[[], nn.Module], axis: str
) -> None:
    delay_ns = 60_000_000
    two_ranks.run(train, str(tmp_path / "run"), wrap, delay_ns)
    prompt, late = analysed(tmp_path / "run").ledger.ranks
    assert 0.9 * delay_ns <= a_step(prompt, f"exposed_wait[{axis}]") <= 1.5 * delay_ns
    assert a_step(late, f"exposed_wait[{axis}]") < 0.3 * delay_ns
    assert a_step(prompt, f"exposed_transfer[{axis}]") < 0.3 * delay_ns


def train_with_backward_elsewhere(directory: str) -> None:
    """Runs backward on another thread, as on a GPU: there autograd has its own thread, and the caller waits for it."""
    owners, name = autograd_engine()
    original = getattr(owners[0], name)

    def backward(*args: Any, **kwargs: Any) -> None:
        thread = threading.Thread(target=original, args=args, kwargs=kwargs)
        thread.start()
        thread.join()

    for owner in owners:
        setattr(owner, name, backward)
    try:
        train(directory, replicated, LATE_NS)
    finally:
        for owner in owners:
            setattr(owner, name, original)


def test_ddp_stalls_for_a_late_rank_with_backward_on_any_thread(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(train_with_backward_elsewhere, str(tmp_path / "run"))
    stalls = [rank.of_kind(Kind.STALL) for rank in traincope.open_run(tmp_path / "run").ranks]
    waited, hurried = (np.median(each["end_ns"] - each["start_ns"]) for each in stalls)
    assert [len(each) for each in stalls] == [STEPS + 1] * 2  # once for the order of DDP's buckets
    assert (stalls[0]["end_ns"] - stalls[0]["start_ns"]).max() >= 0.9 * LATE_NS
    assert hurried < waited


@pytest.fixture(scope="module")
def of_four_ranks(
    four_ranks: Pool, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Callable[[], nn.Module]], Analysis]:
    @functools.cache
    def of(wrap: Callable[[], nn.Module]) -> Analysis:
        directory = tmp_path_factory.mktemp("trained") / "run"
        four_ranks.run(train, str(directory), wrap, 0)
        return analysed(directory)

    return of


@pytest.mark.parametrize("wrap", [sharded, replicated])
def test_the_ledger_is_exact_and_every_collective_is_matched(
    of_four_ranks: Callable[[Callable[[], nn.Module]], Analysis], wrap: Callable[[], nn.Module]
) -> None:
    analysis = of_four_ranks(wrap)
    assert len(analysis.ledger.ranks) == 4
    for rank in analysis.ledger.ranks:
        assert rank.numbers.tolist() == list(range(STEPS))
        total = sum(values for values in rank.terms.values() if values is not None)
        assert (total == rank.wall_ns).all()
        assert rank.ambiguous_waits_ns.sum() == 0
    instances = match_instances(analysis.timeline)
    assert instances.complete.all()
    for rank in analysis.timeline.ranks:
        in_steps = rank.of_kind(Kind.COLLECTIVE)
        in_steps = in_steps[in_steps["step"] >= 0]
        assert len(in_steps) >= STEPS
        assert (in_steps["end_ns"] != OPEN).all()


def test_recorded_bytes_agree_with_the_parameters(
    of_four_ranks: Callable[[Callable[[], nn.Module]], Analysis],
) -> None:
    """FSDP2 gathers each layer's 32 x 32 + 32 fp32 numbers; DDP reduces all three layers at once."""
    layer = (32 * 32 + 32) * 4
    gathered = next(row for row in of_four_ranks(sharded).comm if row.operation == "all_gather")
    scattered = next(row for row in of_four_ranks(sharded).comm if row.operation == "reduce_scatter")
    reduced = next(row for row in of_four_ranks(replicated).comm if row.operation == "all_reduce")
    rank_steps = 4 * (STEPS - 1)
    assert gathered.num_bytes == gathered.count * layer
    assert scattered.num_bytes == rank_steps * 3 * layer
    assert (reduced.num_bytes, reduced.count) == (rank_steps * 3 * layer, rank_steps)


def every_operation(directory: str) -> None:
    """One of each of gloo's collectives: synchronous, asynchronous, functional and point to point."""
    import torch.distributed._functional_collectives as functional

    rank, size = dist.get_rank(), dist.get_world_size()
    with traincope.run(directory) as run:
        run.step()
        payload, payloads = torch.ones(8), [torch.empty(8) for _ in range(size)]
        dist.all_reduce(payload)
        dist.all_reduce(payload, async_op=True).wait()
        dist.broadcast(payload, src=1)
        dist.reduce(payload, dst=0)
        dist.all_gather(payloads, payload)
        dist.all_gather_single(torch.empty(8 * size), payload)
        dist.reduce_scatter_single(torch.empty(4), payload)
        dist.all_to_all_single(torch.empty(8), payload)
        dist.gather(payload, payloads if rank == 0 else None, dst=0)
        dist.scatter(payload, payloads if rank == 0 else None, src=0)
        functional.wait_tensor(functional.all_reduce(payload, "sum", dist.group.WORLD))
        if rank == 0:
            dist.send(payload, dst=1, tag=3)
        else:
            dist.recv(payload, src=0, tag=3)
        dist.barrier()


def test_each_operation_is_recorded_waited_for_and_matched(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(every_operation, str(tmp_path / "run"))
    timeline = traincope.open_run(tmp_path / "run")
    common = ["all_reduce", "all_reduce", "broadcast", "reduce", "all_gather", "all_gather", "reduce_scatter"]
    common += ["all_to_all", "gather", "scatter", "all_reduce"]
    for rank, direct in zip(timeline.ranks, ("send", "recv"), strict=True):
        collectives, stalls = rank.of_kind(Kind.COLLECTIVE), rank.of_kind(Kind.STALL)
        assert [rank.name(int(r["name"])) for r in collectives] == [*common, direct, "barrier"]
        assert [rank.name(int(r["name"])) for r in stalls] == [*common, direct, "barrier"]
        assert (collectives["end_ns"] != OPEN).all()
        assert np.flatnonzero(collectives["flags"] & Flag.ASYNC).tolist() == [1, common.index("all_reduce", 2)]
        message = collectives[collectives["flags"] & Flag.POINT_TO_POINT > 0]
        assert (message["peer"].tolist(), message["tag"].tolist()) == ([1 - rank.rank], [3])
    assert match_instances(timeline).complete.all()


def failing_collective(directory: str) -> str:
    """The backend's own error passes through the hook unchanged."""
    with traincope.run(directory):
        try:
            dist.all_gather([torch.empty(3)], torch.ones(2))
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def failing_without(_: str) -> str:
    try:
        dist.all_gather([torch.empty(3)], torch.ones(2))
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def first_line(text: str) -> str:
    return text.splitlines()[0]


def test_an_error_of_the_backend_passes_unchanged(two_ranks: Pool, tmp_path: Path) -> None:
    hooked = two_ranks.run(failing_collective, str(tmp_path / "run"))
    bare = two_ranks.run(failing_without, "")
    assert [first_line(text) for text in hooked] == [first_line(text) for text in bare]
    assert all(bare)


def pending_after(directory: str, wrap: Callable[[], nn.Module]) -> int:
    """Number of pending collectives after some steps. Each would keep a segment mapped."""
    with traincope.run(directory, budget=None) as run:
        model = wrap()
        for _ in range(8):
            model(torch.ones(4, 32)).square().mean().backward()
            run.step()
        (collectives,) = [hook for hook in run._probes.on if hook.name == "collectives"]
        pending = collectives.pending
        return len(pending.by_work) + len(pending.by_tensor)


@pytest.mark.parametrize("wrap", [sharded, replicated])
def test_works_that_only_torch_waits_for_are_forgotten(
    two_ranks: Pool, tmp_path: Path, wrap: Callable[[], nn.Module]
) -> None:
    assert max(two_ranks.run(pending_after, str(tmp_path / "run"), wrap)) <= 4


def recorded(directory: str) -> AbstractContextManager[Run]:
    return traincope.run(directory)


def train_losses(
    directory: str,
    wrap: Callable[[], nn.Module],
    record: Callable[[str], AbstractContextManager[Run]] = recorded,
) -> list[float]:
    """Losses of a training and its last random numbers, recorded into a directory or not recorded."""
    losses = []
    with record(directory) if directory else nullcontext() as run:
        model = wrap()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(4):
            torch.manual_seed(step)
            loss = model(torch.randn(4, 32)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            if run is not None:
                run.step()
            losses.append(loss.item())
    return [*losses, *(float(value) for value in torch.get_rng_state()[:64])]


def groups_of_all_kinds(directory: str) -> None:
    """A named mesh dimension, a group that only DDP explains, and two groups without an explanation.

    A newer mesh has more axes, but only one of several ranks, as torchtitan's mesh of experts without experts.
    """
    world, pair = dist.new_group(), dist.new_group([0, 1])
    with traincope.run(directory) as run:
        run.step()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
        flat = init_device_mesh("cpu", (1, 4, 1), mesh_dim_names=("dp_replicate", "efsdp", "ep"))
        dist.barrier(group=mesh.get_group("pp"))
        dist.barrier(group=mesh.get_group("tp"))
        DistributedDataParallel(make_model(), process_group=world)(torch.ones(1, 32)).sum().backward()
        if dist.get_rank() < 2:
            dist.barrier(group=pair)
        assert flat.size() == mesh.size()


def test_the_report_names_the_rule_that_identified_an_axis(tmp_path: Path) -> None:
    """Runs in processes of its own.

    torch keeps the meshes of earlier trainings, and a larger one would explain the place.
    """
    pool = Pool(4)
    pool.run(groups_of_all_kinds, str(tmp_path / "run"))
    pool.stop()
    timeline = traincope.open_run(tmp_path / "run")
    named = [[(group.axis, group.rule) for group in rank.groups] for rank in timeline.ranks]
    assert named[3] == [("pp", "mesh"), ("tp", "mesh"), ("dp", "wrapper")]
    assert named[0] == [*named[3], ("group:0,1", "none")]
    assert timeline.ranks[3].coords == {"pp": 1, "tp": 1}
    assert timeline.run.info.mesh == {"pp": 2, "tp": 2}
