"""torch.compile makes the same graphs, breaks and results under the native recorder as without it."""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters

import traincope
from tests.faults.victims.victims import Victims
from tests.native.library import needs_library, using
from traincope.events import Kind
from traincope.store import read_run

pytestmark = needs_library

NUM_STEPS = 3


def train_compiled(out: str) -> dict[str, Any]:
    """Train by a graph with collectives in forward and backward, and by one that a collective of c10d breaks."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weight, group, graphs = torch.nn.Parameter(torch.randn(8, 8)), dist.group.WORLD, []

    def counted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append([node.op for node in graph.graph.nodes])
        return aot_eager(graph, inputs)

    @torch.compile(backend=counted, fullgraph=True)
    def whole(inputs: torch.Tensor) -> torch.Tensor:
        gathered = functional.all_gather_tensor_autograd(inputs @ weight, 0, group)
        return functional.all_reduce(gathered.sum(), "sum", group)

    @torch.compile(backend=counted)
    def broken(inputs: torch.Tensor) -> torch.Tensor:
        outputs = inputs * 2
        torch._dynamo.graph_break()
        work = dist.all_reduce(outputs, async_op=True)
        work.wait()  # type: ignore[union-attr]
        return outputs.sum()

    losses = []
    with traincope.run(out, budget=None, agent=False) if out else nullcontext() as run:
        for step in range(NUM_STEPS):
            inputs = torch.full((4, 8), float(step))
            loss = whole(inputs) + broken(inputs)
            loss.backward()
            losses.append((loss.item(), weight.grad.sum().item()))  # type: ignore[union-attr]
            if run is not None:
                run.step()
    dist.destroy_process_group()
    breaks = sorted(counters["graph_break"].values())
    return {"losses": losses, "graphs": graphs, "breaks": breaks, "frames": dict(counters["frames"])}


def train_both_ways(out: str) -> list[dict[str, Any]]:
    bare = train_compiled("")
    with using(native=True):
        return [bare, train_compiled(out)]


def test_graphs_breaks_and_losses_are_those_of_the_bare_training(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(train_both_ways, tmp_path / "run")
    assert ended.code == 0, ended.err
    bare, recorded = ended.result
    assert recorded == bare
    assert len(bare["graphs"]) > 1
    assert bare["breaks"]
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.probes["native"] == "on"
    records = rank.thread("main")
    collectives = Counter(rank.name(int(number)) for number in records["name"][records["kind"] == Kind.COLLECTIVE])
    assert collectives == {"all_gather": NUM_STEPS, "all_reduce": 3 * NUM_STEPS, "reduce_scatter": NUM_STEPS}
