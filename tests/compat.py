"""Check the recorder under the installed torch: `python -m tests.compat` (or `make compat TORCH=2.6.0`).

Two gloo processes train DDP with accumulation, call each operation once, and run a pipeline. A table shows what was
recorded, and which probes are on. Exit code 1 if something fails that must work; a pipeline that this torch cannot run
is shown and is not a failure. `--json FILE` writes the same outcomes, for `tests.compat_matrix`.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool, RankFailed
from tests.record.instrumentation.test_restore import differences, snapshot
from traincope.events import OPEN, Flag, Kind
from traincope.timeline import RankTimeline, Timeline, match_instances

STEPS, MICROBATCHES = 5, 2
LATE_NS = 100_000_000
LATE_RANK = 1
PATIENCE = 6.0
"""A CUDA build of torch takes minutes to load from a cold disk."""

COMMON = ("all_reduce", "all_reduce", "broadcast", "reduce", "all_gather", "all_gather", "gather", "scatter")
EXPECTED = {rank: [*COMMON, "all_reduce", direct, "barrier"] for rank, direct in enumerate(("send", "recv"))}
"""Calls of `every_operation`, by rank."""
FROM_PYTHON = {rank: [*COMMON, direct, "barrier"] for rank, direct in enumerate(("send", "recv"))}
"""The calls that the fallback can observe: all except the functional one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    passed: bool
    outcome: str
    must: bool = True


# -- on the ranks ----------------------------------------------------------------------------------


def every_operation(directory: str) -> None:
    """Call synchronous, asynchronous, functional and point-to-point operations."""
    with traincope.run(directory, budget=None) as run:
        run.step()
        call_every_operation()


def every_operation_without_the_hook(directory: str) -> None:
    """Call every operation as under a torch that lacks the dispatcher's hook."""
    name = torch._C._dispatch_keyset_full_after
    with ExitStack() as leaving:
        del torch._C._dispatch_keyset_full_after
        run = leaving.enter_context(traincope.run(directory, budget=None))
        torch._C._dispatch_keyset_full_after = name
        run.step()
        call_every_operation()


def call_every_operation() -> None:
    import torch.distributed._functional_collectives as functional

    rank, size = dist.get_rank(), dist.get_world_size()
    gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    tensor, many = torch.ones(8), [torch.empty(8) for _ in range(size)]
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.broadcast(tensor, src=1)
    dist.reduce(tensor, dst=0)
    dist.all_gather(many, tensor)
    gather_single(torch.empty(8 * size), tensor)
    dist.gather(tensor, many if rank == 0 else None, dst=0)
    dist.scatter(tensor, many if rank == 0 else None, src=0)
    functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD))
    if rank == 0:
        dist.send(tensor, dst=1, tag=3)
    else:
        dist.recv(tensor, src=0, tag=3)
    dist.barrier()


def train(directory: str | None) -> list[float]:
    """Train DDP with two microbatches per step, rank 1 late before each backward; returns the losses."""
    torch.manual_seed(0)
    losses = []
    group = dist.new_group()
    with traincope.run(directory, budget=None) if directory else nullcontext() as run:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            for microbatch in range(MICROBATCHES):
                last = microbatch == MICROBATCHES - 1
                with nullcontext() if last else model.no_sync():
                    loss = model(torch.full((4, 16), 0.1 * step)).square().mean()
                    if last and dist.get_rank() == LATE_RANK:
                        time.sleep(LATE_NS / 1e9)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if run is not None:
                run.step()
    return losses


def pipe(directory: str) -> None:
    """GPipe over both ranks; raises the errors of a torch without pipelining."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()
    module, device = nn.Linear(4, 4), torch.device("cpu")
    shape = torch.empty(2, 4, requires_grad=True)
    with traincope.run(directory, budget=None) as run:
        stage = PipelineStage(module, rank, size, device, input_args=(shape,), output_args=(shape,))
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, _: output.square().mean())
        for _ in range(2):
            if rank == 0:
                schedule.step(torch.ones(4, 4))
            else:
                schedule.step(target=torch.ones(4, 4))
            run.step()


def leftover_changes(directory: str) -> list[str]:
    """Names in torch that a run left changed. A first run triggers torch's late imports."""
    every_operation(f"{directory}/first")
    before = snapshot()
    every_operation(f"{directory}/second")
    return sorted(differences(before, snapshot()))


# -- checks of the records -------------------------------------------------------------------------


def names(rank: RankTimeline, kind: Kind) -> list[str]:
    return [rank.name(int(record["name"])) for record in rank.of_kind(kind)]


def check_fallback(timeline: Timeline) -> Check:
    outcome, waited = (
        {rank.rank: names(rank, kind) for rank in timeline.ranks} for kind in (Kind.COLLECTIVE, Kind.STALL)
    )
    complete = bool(match_instances(timeline).complete.all())
    passed = outcome == waited == FROM_PYTHON and complete
    return Check(name="without the dispatcher", passed=passed, outcome=_counted(outcome, FROM_PYTHON))


def check_operations(timeline: Timeline) -> list[Check]:
    outcome = {rank.rank: names(rank, Kind.COLLECTIVE) for rank in timeline.ranks}
    waited = {rank.rank: names(rank, Kind.STALL) for rank in timeline.ranks}
    ended = all((rank.of_kind(Kind.COLLECTIVE)["end_ns"] != OPEN).all() for rank in timeline.ranks)
    matched = match_instances(timeline).complete
    return [
        Check(name="collectives", passed=outcome == EXPECTED and ended, outcome=_counted(outcome, EXPECTED)),
        Check(name="waits", passed=waited == EXPECTED, outcome=_counted(waited, EXPECTED)),
        Check(name="matched between ranks", passed=bool(matched.all()), outcome=f"{matched.sum()} of {len(matched)}"),
    ]


def check_training(timeline: Timeline) -> list[Check]:
    prompt = timeline.ranks[1 - LATE_RANK]
    stalls = prompt.of_kind(Kind.STALL)
    stalls = stalls[[prompt.axis(int(group)) == "dp" for group in stalls["group"]]]
    longest = int((stalls["end_ns"] - stalls["start_ns"]).max(initial=0))
    steps = [sum(not record["flags"] & Flag.PARTIAL for record in rank.of_kind(Kind.STEP)) for rank in timeline.ranks]
    return [
        Check(name="steps", passed=steps == [STEPS] * 2, outcome=f"{steps} of {STEPS}"),
        Check(
            name=f"DDP's stall for a rank {LATE_NS / 1e6:.0f} ms late",
            passed=longest >= LATE_NS / 2,
            outcome=f"{longest / 1e6:.0f} ms",
        ),
    ]


def check_pipeline(pool: Pool, directory: Path) -> Check:
    try:
        pool.run(pipe, str(directory))
    except RankFailed as failed:
        reason = failed.reports[min(failed.reports)].strip().splitlines()[-1]
        return Check(name="pipeline actions", passed=False, outcome=f"not here: {reason}", must=False)
    actions = [len(rank.of_kind(Kind.ACTION)) for rank in traincope.open_run(directory).ranks]
    return Check(name="pipeline actions", passed=min(actions) >= 8, outcome=f"{actions}", must=False)


def examine(pool: Pool, root: Path) -> tuple[list[Check], dict[str, str]]:
    """All checks, and the state of every probe."""
    pool.run(every_operation, str(root / "operations"))
    checks = check_operations(traincope.open_run(root / "operations"))
    pool.run(every_operation_without_the_hook, str(root / "fallback"))
    checks.append(check_fallback(traincope.open_run(root / "fallback")))
    bare, observed = pool.run(train, None), pool.run(train, str(root / "training"))
    training = traincope.open_run(root / "training")
    checks += check_training(training)
    checks.append(Check(name="losses as without it", passed=bare == observed, outcome=f"{observed[0][-1]!r}"))
    checks.append(check_pipeline(pool, root / "pipeline"))
    changed = sorted(set().union(*pool.run(leftover_changes, str(root / "restored"))))
    checks.append(Check(name="torch restored", passed=not changed, outcome=", ".join(changed[:3]) or "bit for bit"))
    return checks, dict(training.run.ranks[0].info.probes)


def _counted(outcome: dict[int, list[str]], expected: dict[int, list[str]]) -> str:
    return f"{sum(map(len, outcome.values()))} of {sum(map(len, expected.values()))}"


# -- the table --------------------------------------------------------------------------------------


def show(checks: list[Check], probes: dict[str, str]) -> None:
    console = Console(width=110, markup=False)
    table = Table(title=f"torch {torch.__version__}, Python {platform.python_version()}, gloo", box=None)
    for column in ("what", "verdict", "seen"):
        table.add_column(column)
    for check in checks:
        verdict = "ok" if check.passed else "FAILED" if check.must else "no"
        table.add_row(check.name, verdict, check.outcome)
    for name, state in sorted(probes.items()):
        table.add_row(f"probe {name}", "on" if state == "on" else "-", "" if state == "on" else state)
    console.print(table)


def outcomes(checks: list[Check], probes: dict[str, str]) -> dict[str, object]:
    """The same as JSON: what `tests.compat_matrix` makes a row of."""
    return {
        "build": "CPU" if torch.version.cuda is None else "CUDA build, on CPU",
        "failed": [check.name for check in checks if not check.passed],
        "absent_probes": sorted(name for name, state in probes.items() if state.startswith("absent")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="check the recorder under the installed torch")
    parser.add_argument("--json", type=Path, help="file for the outcomes")
    file: Path | None = parser.parse_args().json
    pool = Pool(2, patience=PATIENCE)
    try:
        with tempfile.TemporaryDirectory() as directory:
            checks, probes = examine(pool, Path(directory))
    finally:
        pool.stop()
    show(checks, probes)
    if file:
        file.write_text(json.dumps(outcomes(checks, probes)))
    return int(any(check.must and not check.passed for check in checks))


if __name__ == "__main__":
    sys.exit(main())
