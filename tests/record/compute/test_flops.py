"""Counted FLOPs against torch's own counter and against formulas; counting changes nothing."""

import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import traincope
from traincope.analysis.efficiency.counted_flops import CountedFlops, counted_flops
from traincope.analysis.efficiency.work import REMEDY as READ_REMEDY
from traincope.engine.config import ModelConfig
from traincope.engine.model.model import GPT, next_token_loss
from traincope.events import Kind, Phase, Work
from traincope.plan.model.flops import attention_forward, blocks_forward, step_flops
from traincope.plan.model.transformer import Transformer
from traincope.record.compute.flop_formulas import FORMULAS
from traincope.record.compute.flops import REMEDY, is_due
from traincope.record.instrumentation.torch_private import fp32_runs_as_tf32
from traincope.store import read_run

Step = Callable[[], Tensor]

CONFIG = ModelConfig(layers=3, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=16)
SHAPE = Transformer(
    layers=3, hidden=32, heads=4, kv_heads=2, ffn=80, gated_mlp=True, vocabulary=CONFIG.vocabulary, sequence=16
)
BATCH = 2


def counted(directory: Path, step: Step, *, after: Callable[[], object] = lambda: None) -> CountedFlops:
    """Count three steps of forward and backward."""
    with traincope.run(directory) as run:
        for _ in range(3):
            step().backward()
            after()
            run.step()
    (rank,) = traincope.open_run(directory).ranks
    flop_counts = counted_flops(rank)
    assert flop_counts is not None
    return flop_counts


def by_phase(flop_counts: CountedFlops) -> dict[Phase, float]:
    sums: dict[Phase, float] = {}
    for (phase, work, _), count in flop_counts.flops.items():
        if work not in (Work.IMPLIED, Work.COVERED):
            sums[phase] = sums.get(phase, 0.0) + count
    return sums


class Foreign(nn.Module):
    """Convolutions, and products by every name, without fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.spread = nn.Conv2d(8, 8, 3, dilation=2)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2)
        self.lines = nn.Conv1d(4, 6, 5)
        self.linear = nn.Linear(6, 10)
        self.bare = nn.Linear(10, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.spread(self.conv(x))).flatten(2)
        x = self.bare(self.linear(self.lines(x).transpose(1, 2)).relu())
        mixed = torch.einsum("bld,bmd->blm", x, x).softmax(-1)
        x = torch.baddbmm(x, mixed, x, alpha=0.5)
        return torch.addmm(x[0], x[0] @ x[1].t(), x[1]).square().mean()


def test_a_foreign_model_is_counted_as_torch_counts_it(tmp_path: Path) -> None:
    model, images = Foreign(), torch.randn(2, 3, 16, 16)
    with FlopCounterMode(display=False) as forward:
        loss = model(images)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    flop_counts = counted(tmp_path / "run", lambda: model(images))
    assert by_phase(flop_counts) == {
        Phase.FORWARD: forward.get_total_flops(),
        Phase.BACKWARD: backward.get_total_flops(),
    }
    assert flop_counts.coverage_ratio == 1
    assert flop_counts.num_steps == 1


def test_a_grouped_convolution_counts_only_its_groups(tmp_path: Path) -> None:
    """2 x 36 positions x 8 filters of 8 / 4 x 9 elements. torch's counter takes 4 times that for the weights'
    gradient.
    """
    layer, x = nn.Conv2d(8, 8, 3, groups=4), torch.ones(1, 8, 8, 8, requires_grad=True)
    once = 2 * 36 * 8 * 2 * 9
    flop_counts = counted(tmp_path / "run", lambda: layer(x).sum())
    assert by_phase(flop_counts) == {Phase.FORWARD: once, Phase.BACKWARD: 2 * once}


def gpt_step(model: GPT) -> Step:
    tokens = torch.arange(BATCH * (CONFIG.sequence + 1)).view(BATCH, -1) % CONFIG.vocabulary
    return lambda: next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])


def test_a_gpts_flops_match_the_formula_in_both_conventions(tmp_path: Path) -> None:
    flop_counts = counted(tmp_path / "run", gpt_step(GPT(CONFIG)))
    assert flop_counts.model(causal_half=False) == {"float32": step_flops(SHAPE, batch=BATCH).model}
    assert flop_counts.model(causal_half=True) == {"float32": step_flops(SHAPE, batch=BATCH, causal_half=True).model}
    # Fused attention computes its scores again in the backward: one of a forward's two products, half of it masked.
    again = attention_forward(SHAPE, batch=BATCH) / 4
    assert flop_counts.recomputed() == {}
    assert sum(flop_counts.executed().values()) == step_flops(SHAPE, batch=BATCH, causal_half=True).model + again


def test_products_are_counted_by_the_dtype_they_run_in(tmp_path: Path) -> None:
    flop_counts = counted(tmp_path / "run", gpt_step(GPT(CONFIG, autocast=torch.bfloat16)))
    assert flop_counts.model(causal_half=False) == {"bfloat16": step_flops(SHAPE, batch=BATCH).model}


class Recomputed(nn.Module):
    def __init__(self, block: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint.checkpoint(self.block, x, use_reentrant=self.reentrant)
        return result


@pytest.mark.parametrize("reentrant", [True, False])
def test_full_recomputation_is_one_more_forward_of_the_blocks(tmp_path: Path, reentrant: bool) -> None:
    """The checkpoint's early stop is off: it would omit each block's last product."""
    model = GPT(CONFIG)
    model.blocks = nn.ModuleDict({name: Recomputed(block, reentrant=reentrant) for name, block in model.blocks.items()})
    with checkpoint.set_checkpoint_early_stop(False):
        flop_counts = counted(tmp_path / "run", gpt_step(model))
    forward = blocks_forward(SHAPE, batch=BATCH) + attention_forward(SHAPE, batch=BATCH)
    assert by_phase(flop_counts)[Phase.RECOMPUTE] == forward
    assert flop_counts.model(causal_half=False) == {"float32": step_flops(SHAPE, batch=BATCH).model}


def test_a_gradient_of_a_gradient_is_backward_not_recomputation(tmp_path: Path) -> None:
    layer, x = nn.Linear(8, 8, bias=False), torch.ones(4, 8, requires_grad=True)

    def penalised() -> Tensor:
        (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        return slope.square().sum()

    flop_counts = counted(tmp_path / "run", penalised)
    assert set(by_phase(flop_counts)) == {Phase.FORWARD, Phase.BACKWARD}


def test_a_backward_that_keeps_its_graph_is_not_recomputation(tmp_path: Path) -> None:
    layer, x = nn.Linear(8, 8, bias=False), torch.ones(4, 8)
    with traincope.run(tmp_path / "run") as run, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph=True")
        for _ in range(3):
            layer(x).square().sum().backward(create_graph=True)
            layer.weight.grad = None
            run.step()
    (rank,) = traincope.open_run(tmp_path / "run").ranks
    flop_counts = counted_flops(rank)
    assert flop_counts is not None
    assert set(by_phase(flop_counts)) == {Phase.FORWARD, Phase.BACKWARD}


def test_code_compiled_in_a_counted_step_is_compiled_once(tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with traincope.run(tmp_path / "run") as run:
        for step in range(4):
            (compiled if step else layer)(torch.ones(2, 4)).sum().backward()
            run.step()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert graphs == 1


def test_optimizers_and_evaluation_are_not_model_flops(tmp_path: Path) -> None:
    layer, x = nn.Linear(8, 4, bias=False), torch.ones(2, 8)

    @torch.no_grad()
    def inner_calls() -> None:
        for _ in range(5):
            layer.weight @ layer.weight.t()
        layer.eval()(x)
        layer.train()

    flop_counts = counted(tmp_path / "run", lambda: layer(x).sum(), after=inner_calls)
    assert by_phase(flop_counts) == {Phase.FORWARD: 2 * 2 * 8 * 4, Phase.BACKWARD: 2 * 2 * 8 * 4}


@torch.library.custom_op("traincope_tests::product", mutates_args=())
def unknown_product(x: Tensor, weight: Tensor) -> Tensor:
    """A library's own kernel: below autograd, and not an operator of torch."""
    return torch.from_numpy(x.detach().numpy() @ weight.detach().numpy().T)


unknown_product.register_autograd(lambda _, gradient: (gradient, None))


class OwnKernel(nn.Module):
    """Its output has another shape than that of a linear layer, so the weight does not determine the products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = unknown_product(x, self.weight).unsqueeze(0)
        return result


def test_products_in_a_librarys_own_kernel_are_reported_as_missed(tmp_path: Path) -> None:
    """The linear layer holds 3 x 64 of the 4 x 64 elements."""
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 24, bias=False), nn.Linear(24, 8), nn.LayerNorm(8))
    model.append(OwnKernel())
    flop_counts = counted(tmp_path / "run", lambda: model(torch.arange(5)).sum())
    assert flop_counts.coverage_ratio == (192 + 192) / (192 + 192 + 64)


def test_replays_of_a_cuda_graph_are_reported_as_uncountable(tmp_path: Path) -> None:
    """A graph that was never captured: replaying it fails, after the replay was noted."""
    with traincope.run(tmp_path / "run") as run:
        for _ in range(3):
            nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
            with suppress(AttributeError, RuntimeError):
                torch.cuda.CUDAGraph.replay(object.__new__(torch.cuda.CUDAGraph))
            run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    assert Kind.FLOPS not in rank.thread("main")["kind"]
    assert rank.info.probes["flops"].startswith("off: a CUDA graph's replays cannot be counted; call")


def test_an_operator_with_another_kernel_is_left_alone(tmp_path: Path) -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda a, b: (a.unsqueeze(-1) * b).sum(1), "BackendSelect")
    with traincope.run(tmp_path / "run") as run:
        for _ in range(3):
            assert torch.ones(2, 3).mm(torch.ones(3, 2)).tolist() == [[3, 3], [3, 3]]
            nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
            run.step()
    library._destroy()
    (rank,) = read_run(tmp_path / "run").ranks
    assert Kind.FLOPS not in rank.thread("main")["kind"]
    assert rank.info.probes["flops"].startswith("off: another kernel precedes aten::mm already; call")


def test_shapes_of_packed_documents_do_not_determine_the_flops() -> None:
    packed = torch.empty(10, 4, 8, device="meta")
    call: dict[str, Any] = {"query": packed, "key": packed, "value": packed, "cum_seq_q": torch.empty(3)}
    assert FORMULAS["_flash_attention_forward"](call)[1] == ()
    padded = torch.empty(2, 10, 4, 8, device="meta")
    call = {"query": padded, "key": padded, "value": padded, "cum_seq_q": None, "is_causal": False}
    assert FORMULAS["_flash_attention_forward"](call)[1] == ((Work.ATTENTION, 4 * 2 * 4 * 10 * 10 * 8),)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings(
    "ignore:Sparse:UserWarning"
)  # torch's warnings that it checks no invariants, and that CSR is in beta
def test_with_sparse_products_nothing_is_counted_and_the_probe_gives_the_reason(
    tmp_path: Path, layout: torch.layout
) -> None:
    """A graph layer: 64 edges among 1,024 nodes, so one in 16,384 of the FLOPs that the shapes suggest."""
    edges = torch.zeros(1024, 1024)
    edges[torch.arange(64), torch.arange(64)] = 1.0
    sparse, layer = edges.to_sparse(layout=layout), nn.Linear(8, 8)
    with traincope.run(tmp_path / "run", budget=None) as run:
        for _ in range(3):
            torch.sparse.mm(sparse, layer(torch.ones(1024, 8))).sum().backward()
            run.step()
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.probes["flops"].startswith("off: the FLOPs of a product of sparse tensors depend")
    assert not (rank.thread("main")["kind"] == Kind.FLOPS).any()


def test_tf32_is_recognised_by_either_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's defaults: convolutions as TF32, products not. This machine has no GPU to ask further."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    assert not fp32_runs_as_tf32(convolution=True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert (fp32_runs_as_tf32(convolution=True), fp32_runs_as_tf32(convolution=False)) == (True, False)
    matmul.fp32_precision, conv.fp32_precision = "tf32", "ieee"
    assert (fp32_runs_as_tf32(convolution=True), fp32_runs_as_tf32(convolution=False)) == (False, True)
    matmul.fp32_precision, conv.fp32_precision = before


def test_grouped_products_count_every_group_once() -> None:
    """Experts on the rows, on the columns, and along the contracted dimension (the weights' gradient)."""

    def flops(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        call = {"self": torch.empty(a, device="meta"), "mat2": torch.empty(b, device="meta")}
        return FORMULAS["_grouped_mm"](call)[1][0][1]

    assert flops((30, 8), (3, 8, 5)) == 2 * 30 * 8 * 5
    assert flops((3, 7, 8), (8, 30)) == 2 * 7 * 8 * 30
    assert flops((8, 30), (30, 5)) == 2 * 8 * 30 * 5
    assert flops((3, 7, 8), (3, 8, 5)) == 3 * 2 * 7 * 8 * 5


def test_every_overload_of_a_counted_product_is_counted() -> None:
    """`convolution.out` and its backward's call those without `out`. `_foreach_mm` calls `mm`, on a CPU."""
    operators = torch.ops.aten
    missing = set()
    for name in {name.partition(".")[0] for name in FORMULAS}:
        for overload in getattr(operators, name).overloads() if hasattr(operators, name) else ():
            missing.add(name if overload == "default" else f"{name}.{overload}")
    assert missing - FORMULAS.keys() == {"convolution.out", "convolution_backward.out"}


def test_a_product_into_another_dtype_and_of_packed_fp4_counts_its_elements() -> None:
    """These operators run on GPUs only."""
    a, b = torch.empty(6, 8, dtype=torch.bfloat16, device="meta"), torch.empty(8, 5, device="meta")
    assert FORMULAS["addmm.dtype_out"]({"mat1": a, "mat2": b}) == (torch.bfloat16, ((Work.MATMUL, 2 * 6 * 8 * 5),))
    pairs = torch.empty(6, 4, dtype=torch.float4_e2m1fn_x2, device="meta")
    assert FORMULAS["_scaled_mm_v2"]({"self": pairs, "mat2": torch.empty(4, 5, device="meta")})[1] == (
        (Work.MATMUL, 2 * 6 * 8 * 5),
    )


class FusedLoss(torch.autograd.Function):
    """Head and loss in one, like Liger's: it multiplies for the gradients in its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        logits = x @ weight.t()
        ctx.save_for_backward(2 * logits @ weight, 2 * logits.t() @ x)
        return logits.square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        of_input, of_weight = ctx.saved_tensors
        return gradient * of_input, gradient * of_weight


class FusedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16, bias=False), nn.Linear(16, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = FusedLoss.apply(self.body(x), self.head.weight)
        return loss


def test_the_root_modules_own_products_count_in_a_step_that_begins_with_its_call(tmp_path: Path) -> None:
    """Without `run.step` and a DataLoader. Inside an `autograd.Function` gradients are off."""
    model = FusedHead()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with traincope.run(tmp_path / "run", budget=None):
        for _ in range(3):
            model(torch.ones(4, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
    (rank,) = traincope.open_run(tmp_path / "run").ranks
    flop_counts = counted_flops(rank)
    assert flop_counts is not None
    body, head = 2 * 4 * 8 * 16, 2 * 4 * 16 * 32
    assert by_phase(flop_counts) == {Phase.FORWARD: body + 3 * head, Phase.BACKWARD: body}


def test_declared_flops_are_recorded(tmp_path: Path) -> None:
    with traincope.run(tmp_path / "run", flops=6.25e15):
        traincope.event("begun")
    assert read_run(tmp_path / "run").info.settings == {"model_flops_per_step": 6.25e15}


def test_the_analysis_knows_the_probes_states() -> None:
    assert READ_REMEDY == REMEDY


def test_few_steps_are_counted_and_fewer_over_time() -> None:
    assert [step for step in range(2000) if is_due(step)] == [1, 32, 64, 128, 256, 512, 1024, 1536]


def test_between_counted_steps_no_kernel_of_ours_is_registered(tmp_path: Path) -> None:
    layer, tables = nn.Linear(4, 4), []
    with traincope.run(tmp_path / "run") as run:
        for _ in range(4):
            layer(torch.ones(2, 4)).sum().backward()
            tables.append([torch._C._dispatch_dump(f"aten::{operator}") for operator in ("addmm", "mm")])
            run.step()
    assert tables[0] == tables[2] == tables[3]
    assert all(before != after for before, after in zip(tables[0], tables[1], strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    losses: list[float]
    parameters: list[list[float]]
    random: float


def trained(directory: Path | None) -> Outcome:
    """Train a recomputed model with dropout, whose masks depend on the random state."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16)) for _ in range(3)]
    attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
    parameters = [*attention.parameters(), *(each for block in blocks for each in block.parameters())]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    losses = []
    with traincope.run(directory) if directory else nullcontext() as run:
        for _ in range(4):
            x = torch.randn(4, 8, 16)
            x = x + attention(x, x, x, need_weights=False)[0]
            for block in blocks:
                x = checkpoint.checkpoint(block, x, use_reentrant=False)
            loss = functional.cross_entropy(x.flatten(0, 1), torch.arange(32) % 16, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if run is not None:
                run.step()
    return Outcome(
        losses=losses,
        parameters=[each.detach().flatten().tolist() for each in parameters],
        random=torch.rand(()).item(),
    )


def test_counting_keeps_the_training_bit_identical(tmp_path: Path) -> None:
    assert trained(tmp_path / "run") == trained(None)
    (rank,) = read_run(tmp_path / "run").ranks
    assert Kind.FLOPS in rank.thread("main")["kind"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_a_trace_of_torch_jit_in_a_counted_step_is_as_without_a_run(tmp_path: Path) -> None:
    """Questions for shapes would be nodes of its graph, and numbers made of them would be warned about."""

    def train() -> list[str]:
        model, graphs = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            graphs.append(str(torch.jit.trace(model, torch.ones(2, 4)).graph))
        return graphs

    bare = train()
    with traincope.run(tmp_path / "run", budget=None):
        recorded = train()
    assert [_numbered(graph) for graph in recorded] == [_numbered(graph) for graph in bare]


def _numbered(graph: str) -> str:
    """A graph without the numbers of its classes, which rise in a process."""
    return re.sub(r"___torch_mangle_\d+\.", "", graph)
