"""Parameters that are in no unit of FSDP or DDP, in trainings of two ranks on gloo: which of them drift apart."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool
from traincope.analysis import Finding
from traincope.analysis.faults.anomalies.outside_units import outside_units

STEPS, WIDTH, WORDS = 24, 8, 12
DRIFTS = ("fsdp", "fsdp1", "ddp", "accumulates")
HEALTHY = (
    *("whole", "by hand", "ignored", "frozen", "same inputs", "one rank", "two optimizers", "own seeds"),
    *("classes", "classes by fsdp", "averages", "not trained"),
)


class Model(nn.Module):
    """Two blocks, with an embedding and a head that are in no unit."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.head: nn.Module = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(words)
        for block in self.blocks:
            hidden = hidden + block(hidden).tanh()
        result: Tensor = self.head(hidden)
        return result


class OwnClasses(nn.Module):
    """A head that has, on each rank, classes of its own for the rows of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        rows = [torch.empty_like(hidden) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, hidden.detach().contiguous())
        rows[dist.get_rank()] = hidden
        return torch.cat(rows) @ self.weight.T


def shard(model: Model, case: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if case == "one rank":
        mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicas", "shards"))["shards"]
    for at, block in enumerate(model.blocks):
        if case == "fsdp1":
            model.blocks[at] = FullyShardedDataParallel(block, use_orig_params=True, device_id=torch.device("cpu"))
        elif case in ("ddp", "classes"):
            model.blocks[at] = DistributedDataParallel(block)
        else:
            fully_shard(block, mesh=mesh)
    outside = {*model.embedding.parameters(), *model.head.parameters()}
    if case in ("whole", "ignored"):
        fully_shard(model, mesh=mesh, ignored_params=outside if case == "ignored" else None)


def train(folder: str, case: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(rank if case == "own seeds" else 0)
    model = Model()
    outside = [*model.embedding.parameters(), *model.head.parameters()]
    if case.startswith("classes"):
        model.head = OwnClasses()
    with traincope.run(folder, budget=None) as run:
        shard(model, case)
        for each in outside if case == "frozen" else ():
            each.requires_grad_(False)
        blocks = [*model.blocks.parameters()]
        trained = (
            [blocks, outside]
            if case == "two optimizers"
            else [blocks if case == "not trained" else [*model.parameters()]]
        )
        optimizers = [torch.optim.Adam(each, lr=0.01) for each in trained]
        for step in range(STEPS):
            for microbatch in range(2 if case == "accumulates" else 1):
                seed = 100 * step + 10 * microbatch + (0 if case == "same inputs" else rank)
                words = torch.randint(0, WORDS, (6,), generator=torch.Generator().manual_seed(seed))
                result = model(words)
                nn.functional.cross_entropy(result, words.repeat(len(result) // 6)).backward()
            for each in outside if case == "by hand" else ():
                dist.all_reduce(each.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if case == "averages" and step % 10 == 9:
                with torch.no_grad():
                    dist.all_reduce(flat := torch.cat([each.flatten() for each in outside]))
                    for each, mean in zip(outside, flat.split([each.numel() for each in outside]), strict=True):
                        each.copy_(mean.view_as(each) / dist.get_world_size())
            run.step()


def average(folder: str, case: str) -> None:
    """Train without a wrapper. Each rank makes its model from its own seed, but for `equal` and `broadcast`."""
    rank = dist.get_rank()
    torch.manual_seed(0 if case == "equal" else rank)
    model = Model()
    for each in model.parameters() if case == "broadcast" else ():
        dist.broadcast(each.data, 0)
    with traincope.run(folder, budget=None) as run:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(STEPS):
            words = torch.randint(0, WORDS, (6,), generator=torch.Generator().manual_seed(100 * step + rank))
            nn.functional.cross_entropy(model(words), words).backward()
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            summed = torch.cat([each.flatten() for each in gradients])
            if case != "apart":
                dist.all_reduce(summed)
            for each, total in zip(gradients, summed.split([each.numel() for each in gradients]), strict=True):
                each.copy_(total.view_as(each) / dist.get_world_size())
            optimizer.step()
            optimizer.zero_grad()
            run.step()


@pytest.mark.parametrize(
    ("case", "differ"), [("seeds", True), ("equal", False), ("broadcast", False), ("apart", False)]
)
def test_replicas_that_never_were_the_same_are_found(two_ranks: Pool, tmp_path: Path, case: str, differ: bool) -> None:
    two_ranks.run(average, str(tmp_path), case)
    verdict = traincope.analyze(traincope.open_run(tmp_path)).verdict
    findings = [each for each in verdict if each.kind == "replicas_differ"]
    assert len(findings) == differ
    for finding in findings:
        assert finding.ranks == ()
        assert finding.evidence.startswith(
            "replicas were never the same: embedding.weight, blocks.0.weight, blocks.0.bias and others differ between "
            "the 2 ranks before the first update, and in all"
        )
        assert "broadcast those of rank 0" in finding.advice


def found(pool: Pool, folder: Path, case: str) -> Finding | None:
    pool.run(train, str(folder), case)
    findings = traincope.analyze(traincope.open_run(folder)).verdict
    return next((each for each in findings if each.kind == "unreduced_gradients"), None)


@pytest.mark.parametrize("case", DRIFTS)
def test_parameters_in_no_unit_drift_apart(two_ranks: Pool, tmp_path: Path, case: str) -> None:
    """Embedding, head and its bias: (2 x 12 x 8 + 12) x 4 bytes."""
    finding = found(two_ranks, tmp_path, case)
    assert finding is not None
    assert finding.ranks == ()
    unit = "DDP" if case == "ddp" else "FSDP"
    assert (
        f"trains embedding.weight, head.weight, head.bias, 816 B in all, that are in no unit of {unit}"
        in finding.evidence
    )
    assert "equal on 2 ranks" in finding.evidence
    assert ("fully_shard(model)" in finding.advice) is (unit == "FSDP")
    assert outside_units(traincope.open_run(tmp_path), ()) is None  # nothing shows what the ranks exchange


@pytest.mark.parametrize("case", HEALTHY)
def test_what_stays_equal_or_may_be_meant_is_no_finding(two_ranks: Pool, tmp_path: Path, case: str) -> None:
    """`classes`: ranks begin with equal weights by the same seed, which are those of other classes on each rank."""
    assert found(two_ranks, tmp_path, case) is None
