"""FLOPs of compiled code against the same code, counted while it runs eagerly, and against formulas."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import checkpoint

import traincope
from tests.record.compute.test_flops import BATCH, CONFIG, SHAPE, by_phase, counted, gpt_step
from traincope.analysis import analyze
from traincope.analysis.efficiency.counted_flops import CountedFlops, counted_flops
from traincope.engine.model.model import GPT
from traincope.events import Kind, Phase, Work
from traincope.plan.model.flops import step_flops
from traincope.record.compute.flops import BY_GRAPHS, HIDDEN
from traincope.store import read_run

Step = Callable[[], Tensor]


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def compiled(function: Any) -> Any:
    """Compile through AOTAutograd, as inductor does, but run torch's own kernels."""
    return torch.compile(function, backend="aot_eager")


def products(flop_counts: CountedFlops) -> dict[Any, float]:
    """The model's FLOPs by phase, kind of work and dtype."""
    other = (Work.IMPLIED, Work.COVERED, Work.ATTENTION_AGAIN, Work.CAUSAL_ATTENTION_AGAIN)
    return {key: count for key, count in flop_counts.flops.items() if key[1] not in other}


class Block(nn.Module):
    """Attention by single products under dropout, and a feed-forward."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.qkv, self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 40), nn.Linear(40, 16)
        self.checkpointed = checkpointed

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=0.1)
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        mixed = checkpoint.checkpoint(self.attend, x, use_reentrant=False) if self.checkpointed else self.attend(x)
        result: Tensor = self.down(self.up(x + mixed).relu())
        return result


def step_of(model: Any, x: Tensor) -> Step:
    return lambda: model(x).square().mean()


X = torch.ones(2, 8, 16)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")  # the model's own
def test_a_compiled_gpts_flops_match_the_formula_in_both_conventions(tmp_path: Path) -> None:
    """Grouped queries: 4 heads share 2 heads of keys."""
    flop_counts = counted(tmp_path / "run", gpt_step(compiled(GPT(CONFIG))))
    assert flop_counts.model(causal_half=False) == {"float32": step_flops(SHAPE, batch=BATCH).model}
    assert flop_counts.model(causal_half=True) == {"float32": step_flops(SHAPE, batch=BATCH, causal_half=True).model}
    (rank,) = read_run(tmp_path / "run").ranks
    assert rank.info.probes["flops"] == BY_GRAPHS


@pytest.mark.slow
@pytest.mark.parametrize("checkpointed", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_a_compiled_model_counts_as_it_does_eagerly(tmp_path: Path, checkpointed: bool) -> None:
    """A region that the compiled backward may compute again counts once."""
    eager = counted(tmp_path / "eager", step_of(Block(), X))
    observed = counted(tmp_path / "compiled", step_of(compiled(Block(checkpointed=checkpointed)), X))
    assert products(observed) == products(eager)
    assert products(eager)[Phase.FORWARD, Work.CAUSAL_PRODUCTS, "float32"] == 2 * 2 * 2 * 4 * 8 * 8 * 4


def test_frozen_weights_and_inputs_have_no_gradient_products(tmp_path: Path) -> None:
    """LoRA: the first weight is frozen and its input needs no gradient; of the second, only the weight is frozen."""
    first, second, adapter = (nn.Linear(16, 16, bias=False) for _ in range(3))
    first.weight.requires_grad_(False)
    second.weight.requires_grad_(False)

    def lora(x: Tensor) -> Tensor:
        hidden = first(x) + adapter(x)
        result: Tensor = second(hidden)
        return result

    once = 2 * 2 * 8 * 16 * 16
    for name, step in (("eager", lora), ("compiled", compiled(lora))):
        flop_counts = counted(tmp_path / name, step_of(step, X))
        assert by_phase(flop_counts) == {Phase.FORWARD: 3 * once, Phase.BACKWARD: 2 * once}


@pytest.mark.sweep
def test_compiled_blocks_in_an_eager_model_under_recomputation(tmp_path: Path) -> None:
    """Each block is compiled alone, and the eager checkpoint around it runs its forward again."""
    head, block = nn.Linear(16, 24), compiled(Block())

    def step() -> Tensor:
        x = checkpoint.checkpoint(block, X.clone().requires_grad_(), use_reentrant=False)
        loss: Tensor = head(x).square().mean()
        return loss

    with checkpoint.set_checkpoint_early_stop(False):
        flop_counts = counted(tmp_path / "run", step)
    once = 2 * 16 * (16 * 48 + 2 * 16 * 40) + 4 * 2 * 4 * 8 * 8 * 4
    in_head = 2 * 16 * 16 * 24
    assert by_phase(flop_counts) == {
        Phase.FORWARD: once + in_head,
        Phase.RECOMPUTE: once,
        Phase.BACKWARD: 2 * (once + in_head),
    }


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo's own
def test_a_graph_break_evaluation_and_autocast(tmp_path: Path) -> None:
    """Two graphs, in bf16 by a switch around them; the evaluation counts nothing, and no switch stays on."""
    first, second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

    @compiled
    def model(x: Tensor) -> Tensor:
        x = first(x)
        torch._dynamo.graph_break()
        result: Tensor = second(x)
        return result

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(X.clone().requires_grad_()).float().square().mean()

    @torch.no_grad()
    def evaluate() -> None:
        model(X)

    flop_counts = counted(tmp_path / "run", step, after=evaluate)
    once = 2 * 2 * 8 * 16 * 16
    assert products(flop_counts) == {
        (Phase.FORWARD, Work.MATMUL, "bfloat16"): 2 * once,
        (Phase.BACKWARD, Work.MATMUL, "bfloat16"): 4 * once,
    }
    assert not torch.is_autocast_enabled("cpu")


def test_a_graph_of_varying_size_counts_by_the_sizes_of_the_step(tmp_path: Path) -> None:
    """The counted step, the second, has another length than the one that was compiled."""
    layer = compiled(nn.Linear(16, 16, bias=False))
    lengths = iter((8, 5, 3))
    flop_counts = counted(tmp_path / "run", lambda: layer(torch.ones(next(lengths), 16)).square().mean())
    assert by_phase(flop_counts) == {Phase.FORWARD: 2 * 5 * 16 * 16, Phase.BACKWARD: 2 * 5 * 16 * 16}


def test_a_forward_without_backward_counts_alone(tmp_path: Path) -> None:
    layer = compiled(nn.Linear(16, 16, bias=False))

    def step() -> Tensor:
        layer(X)
        loss: Tensor = layer(X).square().mean()
        return loss

    once = 2 * 2 * 8 * 16 * 16
    assert by_phase(counted(tmp_path / "run", step)) == {Phase.FORWARD: 2 * once, Phase.BACKWARD: once}


@torch.library.custom_op("traincope_tests::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    return x @ x.transpose(-1, -2)


@opaque.register_fake
def _(x: Tensor) -> Tensor:
    return x @ x.transpose(-1, -2)


def probe_of(directory: Path, step: Callable[[], Tensor]) -> str:
    with traincope.run(directory) as run:
        for _ in range(3):
            step().backward()
            run.step()
    (rank,) = read_run(directory).ranks
    assert Kind.FLOPS not in rank.thread("main")["kind"]
    return rank.info.probes["flops"]


def test_an_operator_of_another_library_in_a_graph_makes_the_flops_unknown(tmp_path: Path) -> None:
    layer = nn.Linear(16, 16)
    model = compiled(lambda x: layer(x) + opaque(x).sum())
    state = probe_of(tmp_path / "run", lambda: model(X).sum())
    assert state.startswith("off: FLOPs in compiled code cannot be counted: it calls traincope_tests.opaque")


def test_code_that_was_compiled_before_the_run_makes_the_flops_unknown(tmp_path: Path) -> None:
    model = compiled(nn.Linear(16, 16))
    model(X).sum().backward()
    assert probe_of(tmp_path / "run", lambda: model(X).sum()) == HIDDEN


def test_a_backend_that_runs_the_graph_itself_is_counted_like_eager_code(tmp_path: Path) -> None:
    layer = torch.compile(nn.Linear(16, 16, bias=False), backend="eager")
    once = 2 * 2 * 8 * 16 * 16
    assert by_phase(counted(tmp_path / "run", step_of(layer, X))) == {Phase.FORWARD: once, Phase.BACKWARD: once}


def test_the_report_says_that_graphs_gave_the_flops_and_leaves_out_hfu(tmp_path: Path) -> None:
    model = compiled(nn.Linear(16, 16, bias=False))
    with traincope.run(tmp_path / "run") as run:
        run.describe(peak_flops=1e12)
        for _ in range(4):
            model(X).sum().backward()
            run.step()
    used = analyze(traincope.open_run(tmp_path / "run")).utilization
    assert used.work.convention == (
        "as counted, compiled code by the graphs that torch.compile captured, causal attention halved"
    )
    assert used.work.model == 2 * 2 * 2 * 8 * 16 * 16
    assert used.ratios.mfu is not None
    assert (used.ratios.hfu, used.work.executed) == (None, None)


def test_products_of_a_compiled_optimizer_are_not_the_models(tmp_path: Path) -> None:
    """They run with gradients off, which only the graph shows. Those of a module count, as they do eagerly."""
    layer, teacher = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

    class Student(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = teacher(x)
            result: Tensor = layer(x) - target
            return result

    @compiled
    def update() -> None:
        with torch.no_grad():
            layer.weight.sub_(layer.weight @ layer.weight.t() @ layer.weight)

    once = 2 * 2 * 8 * 16 * 16
    model = compiled(Student())
    flop_counts = counted(tmp_path / "run", step_of(model, X), after=update)
    assert by_phase(flop_counts) == {Phase.FORWARD: 2 * once, Phase.BACKWARD: once}


def test_products_of_the_compilation_do_not_count(tmp_path: Path) -> None:
    """The counted step, the second, compiles. Inductor compares kernels then."""
    layer = nn.Linear(16, 16, bias=False)

    def compare(module: Any, examples: Any) -> Any:
        nn.Linear(64, 64)(torch.ones(64, 64)) @ torch.ones(64, 64)
        return torch._dynamo.lookup_backend("aot_eager")(module, examples)

    models = iter((layer, torch.compile(layer, backend=compare), layer))
    once = 2 * 2 * 8 * 16 * 16
    flop_counts = counted(tmp_path / "run", lambda: next(models)(X).square().mean())
    assert by_phase(flop_counts) == {Phase.FORWARD: once, Phase.BACKWARD: once}


def train(directory: Path | None) -> tuple[list[float], list[float]]:
    """Losses, and the state of the random numbers."""
    _forget()
    torch.manual_seed(3)
    with nullcontext() if directory is None else traincope.run(directory, budget=None):
        model, losses = Block(), []
        code, optimizer = compiled(model), torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            loss = code(torch.randn(2, 8, 16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            traincope.step()
    return losses, torch.get_rng_state().tolist()


@pytest.mark.sweep
def test_counting_by_graphs_keeps_the_training_bit_identical(tmp_path: Path) -> None:
    """Dropout draws random numbers in every step."""
    assert train(tmp_path / "run") == train(None)
    (rank,) = traincope.open_run(tmp_path / "run").ranks
    assert counted_flops(rank) is not None


def train_under_autocast(directory: Path | None) -> list[float]:
    """Gradients of an eager layer that is used before and after compiled code, with one copy of its weight in bf16."""
    _forget()
    torch.manual_seed(3)
    layer, inner = nn.Linear(16, 16), nn.Linear(16, 16)

    @compiled
    def middle(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result: Tensor = inner(x)
        return result

    with nullcontext() if directory is None else traincope.run(directory, budget=None):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = layer(middle(layer(torch.randn(8, 16)))).float().square().mean()
            loss.backward()
            traincope.step()
    assert layer.weight.grad is not None
    gradients: list[float] = layer.weight.grad.flatten().tolist()
    return gradients


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo's own
def test_counting_keeps_the_copies_of_weights_that_autocast_made(tmp_path: Path) -> None:
    assert train_under_autocast(tmp_path / "run") == train_under_autocast(None)


def test_a_backward_that_was_compiled_makes_the_flops_unknown(tmp_path: Path) -> None:
    """torch counts its captures. The context that compiles is over when a step begins and ends."""
    torch._dynamo.utils.counters["compiled_autograd"]["captures"] += 1
    layer = nn.Linear(16, 16)
    assert probe_of(tmp_path / "run", lambda: layer(X).sum()) == HIDDEN
