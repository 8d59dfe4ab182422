"""Boundaries of steps without `run.step()`: every way that trainings are written."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import traincope
from tests.faults.victims.victims import Victims
from traincope.analysis import analyze
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.record.session.steps import NO_OPTIMIZER_AFTER
from traincope.report.document.document import to_document
from traincope.report.sections.head import facts
from traincope.report.sections.recording import recording
from traincope.report.sections.values import sentences
from traincope.store import read_run
from traincope.timeline import open_run


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def backward(trained: nn.Module) -> None:
    trained(torch.ones(2, 4)).sum().backward()


def plain() -> Iterator[None]:
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters())
    while True:
        backward(trained)
        optimizer.step()
        optimizer.zero_grad()
        yield


def accumulating(microbatches: int) -> Iterator[None]:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    while True:
        for _ in range(microbatches):
            backward(trained)
        optimizer.step()
        yield


def two_optimizers() -> Iterator[None]:
    generator, critic = model(), model()
    first = torch.optim.SGD(generator.parameters(), lr=0.1)
    second = torch.optim.SGD(critic.parameters(), lr=0.1)
    while True:
        backward(generator)
        backward(critic)
        first.step()
        second.step()
        yield


def zero_1() -> Iterator[None]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    trained = model()
    optimizer = ZeroRedundancyOptimizer(trained.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    while True:
        backward(trained)
        optimizer.step()
        yield


def optimizer_in_backward() -> Iterator[None]:
    trained = model()
    for parameter in trained.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def update(_: nn.Parameter, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    while True:
        backward(trained)
        yield


class Lion(torch.optim.Optimizer):
    """An optimizer of the training's own."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= 0.1 * parameter.grad.sign()


def own_class() -> Iterator[None]:
    trained = model()
    optimizer = Lion(trained.parameters())
    while True:
        backward(trained)
        optimizer.step()
        yield


def closure() -> Iterator[None]:
    """The optimizer calls backward itself: 20 times, because it never converges."""
    trained = model()
    optimizer = torch.optim.LBFGS(trained.parameters(), lr=1e-3, max_iter=20, tolerance_grad=0, tolerance_change=0)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = trained(torch.ones(2, 4)).square().sum()
        value.backward()
        return value

    while True:
        optimizer.step(loss)
        yield


def zeroed_at_the_top() -> Iterator[None]:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        backward(trained)
        optimizer.step()
        yield


def zeroed_by_the_model() -> Iterator[None]:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    while True:
        backward(trained)
        optimizer.step()
        trained.zero_grad()
        yield


def compiled(zeroed: str, *, by_model: bool = False) -> Iterator[None]:
    """A compiled step, here of 3 microbatches, which no hook sees."""
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="aot_eager")
    zero_grad: Callable[[], Any] = trained.zero_grad if by_model else optimizer.zero_grad
    while True:
        if zeroed == "top":
            zero_grad()
        for _ in range(3):
            backward(trained)
        step()
        if zeroed == "end":
            zero_grad()
        yield


def compiled_model() -> Iterator[None]:
    """Gradients are zeroed between the loss and its backward."""
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    code = torch.compile(trained, backend="aot_eager")
    while True:
        loss = code(torch.ones(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def restored() -> Iterator[None]:
    """`set_optimizer_state_dict` steps once without gradients, to create the state that it fills."""
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters())
    for parameter in trained.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    while True:
        backward(trained)
        optimizer.step()
        optimizer.zero_grad()
        yield


def own_arithmetic() -> Iterator[None]:
    """No optimizer at all, and accumulation."""
    trained = model()
    while True:
        for _ in range(3):
            backward(trained)
        descend(trained)
        trained.zero_grad()
        yield


@torch.no_grad()
def descend(trained: nn.Module) -> None:
    for parameter in trained.parameters():
        assert parameter.grad is not None
        parameter -= 0.1 * parameter.grad


def by_hand(update: Callable[[torch.Tensor], object], *, microbatches: int = 3) -> Iterator[None]:
    """Neither an optimizer nor `zero_grad`. Between two microbatches, a part of the weights and an input change too."""
    trained = nn.Sequential(nn.Embedding(8, 4, max_norm=0.1), nn.Linear(4, 4))
    attacked = torch.zeros(4, requires_grad=True)
    while True:
        for _ in range(microbatches):
            (trained(torch.arange(8)) + attacked).square().sum().backward()
            with torch.no_grad():
                attacked += 0.1
        for weight in trained.parameters():
            update(weight)
        yield


@torch.no_grad()
def in_place(weight: torch.Tensor) -> None:
    assert weight.grad is not None
    weight -= 0.1 * weight.grad
    weight.grad.zero_()


def behind_autograd(weight: torch.Tensor) -> None:
    """torch does not count this change, but the gradient is gone."""
    assert weight.grad is not None
    weight.data -= 0.1 * weight.grad
    weight.grad = None


def gradients_only() -> Iterator[None]:
    """A second root module, here a frozen one, runs between the update and the next backward. It begins the step."""
    frozen, weight = model().requires_grad_(False), torch.ones(4, 1, requires_grad=True)
    while True:
        for _ in range(2):
            (gradient,) = torch.autograd.grad((frozen(torch.ones(2, 4)).mean() * weight).sum(), weight)
        with torch.no_grad():
            weight -= 0.1 * gradient
        yield


def idle_expert(*, clear: bool) -> Iterator[None]:
    """A mixture of experts. The second one runs in every third step: in the others it has no gradient, or zeros."""
    experts, head = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), nn.Linear(4, 1)
    weights = [*experts.parameters(), *head.parameters()]
    for number in count():
        inputs = torch.ones(2, 4)
        hidden = experts[0](inputs) + experts[1](inputs) if number % 3 == 0 else experts[0](inputs)
        head(hidden).sum().backward()
        with torch.no_grad():
            for weight in weights:
                if weight.grad is not None and weight.grad.any():
                    weight -= 0.1 * weight.grad
                    weight.grad = None if clear else weight.grad.zero_()
        yield


WITHOUT_OPTIMIZER = {
    "in place": partial(by_hand, in_place),
    "behind autograd": partial(by_hand, behind_autograd),
    "gradients only": gradients_only,
    "idle expert": partial(idle_expert, clear=True),
    "idle expert with zeros": partial(idle_expert, clear=False),
}


@torch.no_grad()
def drop_after_update(updated: nn.Module, *others: nn.Module) -> None:
    descend(updated)
    for weight in nn.ModuleList([updated, *others]).parameters():
        weight.grad = None


def own_sum(*, behind: bool) -> Iterator[None]:
    """Three microbatches, whose gradients are added to a sum and dropped."""
    trained = model()
    weights = list(trained.parameters())
    while True:
        sums = [torch.zeros_like(weight) for weight in weights]
        for _ in range(3):
            backward(trained)
            for total, weight in zip(sums, weights, strict=True):
                total += weight.grad
                weight.grad = None
        with torch.no_grad():
            for total, weight in zip(sums, weights, strict=True):
                changed = weight.data if behind else weight
                changed -= 0.1 * total
        yield


def gan() -> Iterator[None]:
    """Each update clears both models. The critic's backward comes first."""
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    while True:
        critic(generator(torch.ones(2, 4)).detach()).sum().backward()
        drop_after_update(critic, generator)
        critic(generator(torch.ones(2, 4))).sum().backward()
        drop_after_update(generator, critic)
        yield


def layers_in_turn(*, clear: bool) -> Iterator[None]:
    """All layers get gradients, but every second step leaves the first layer as it is."""
    first, last = nn.Linear(4, 4), nn.Linear(4, 1)
    for number in count():
        last(first(torch.ones(2, 4))).sum().backward()
        for layer in (last,) if number % 2 else (last, first):
            descend(layer)
        for weight in (*first.parameters(), *last.parameters()):
            assert weight.grad is not None
            weight.grad = None if clear else weight.grad.zero_()
        yield


def stops_to_show() -> Iterator[None]:
    """After two steps, updates are made behind autograd and gradients keep zeros."""
    trained = model()
    for number in count():
        backward(trained)
        for weight in trained.parameters():
            assert weight.grad is not None
            with torch.no_grad():
                changed = weight if number < 2 else weight.data
                changed -= 0.1 * weight.grad
                weight.grad.zero_()
        yield


KNOWN, UNKNOWN = Flag.GUESSED, Flag.GUESSED | Flag.BY_BACKWARD

DOUBTFUL: dict[str, tuple[Callable[[], Iterator[None]], list[Flag]]] = {
    # Until the first update, dropped gradients are the only sign: it may be one.
    "own sum": (partial(own_sum, behind=False), [UNKNOWN, UNKNOWN, *[KNOWN] * 6]),
    "own sum behind autograd": (partial(own_sum, behind=True), [UNKNOWN] * 18),
    # The generator's last update follows the critic's, so it counts as one too many.
    "gan": (gan, [*[KNOWN] * 6, UNKNOWN]),
    "layers in turn": (partial(layers_in_turn, clear=True), [KNOWN, UNKNOWN] * 3),
    "layers in turn with zeros": (partial(layers_in_turn, clear=False), [KNOWN, UNKNOWN] * 3),
    "stops to show": (stops_to_show, [KNOWN, KNOWN, UNKNOWN]),
}
"""Trainings of 6 steps whose number the weights may not show, and the flags of the recorded ones."""


def without_modules() -> Iterator[None]:
    """Matrices, and no DataLoader: only backward and the optimizer show the steps. Every second step has two parts."""
    weight = torch.ones(4, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number in count():
        for _ in range(1 + number % 2):
            (torch.ones(2, 4) @ weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


WAYS = (
    plain,
    without_modules,
    *(pytest.param(partial(accumulating, number), id=f"accumulating {number}") for number in (4, 32, 64)),
    two_optimizers,
    zero_1,
    optimizer_in_backward,
    own_class,
    closure,
    zeroed_at_the_top,
    zeroed_by_the_model,
    *(pytest.param(partial(compiled, where), id=f"compiled, zeroed at the {where}") for where in ("top", "end")),
    pytest.param(partial(compiled, "end", by_model=True), id="compiled, zeroed by the model"),
    compiled_model,
    restored,
    own_arithmetic,
)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_one_iteration_is_one_step(tmp_path: Path, way: Callable[[], Iterator[None]]) -> None:
    with traincope.run(tmp_path / "run", budget=None):
        iterations = way()
        for _ in range(5):
            next(iterations)
    steps = recorded_steps(tmp_path / "run")
    assert steps[:5] == [(number, Flag.GUESSED) for number in range(5)]
    assert steps[5:] == ([(5, Flag.PARTIAL)] if way is without_modules else [])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("way", [plain, partial(compiled, "end")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_training_after_another_has_steps_too(tmp_path: Path, way: Callable[[], Iterator[None]]) -> None:
    """Folds, trials, or stages: the first optimizer still exists. The second's first step is not recognised yet."""
    trainings = [way(), way()]
    with traincope.run(tmp_path / "run", budget=None):
        for iterations in trainings:
            for _ in range(5):
                next(iterations)
    assert recorded_steps(tmp_path / "run") == [(number, Flag.GUESSED) for number in range(5 + 4)]


def recorded_steps(path: Path) -> list[tuple[int, Flag]]:
    (rank,) = read_run(path).ranks
    records = rank.thread("main")[rank.thread("main")["kind"] == Kind.STEP]
    assert (records["end_ns"] != OPEN).all()
    return [(int(step["step"]), Flag(int(step["flags"])) & ~Flag.DETAILED) for step in records]


def train_without_optimizer(directory: str) -> None:
    """`ended` frees its weights before the run ends: they cannot show the last update."""
    with traincope.run(f"{directory}/ended", budget=None):
        iterations = by_hand(in_place)
        for _ in range(5):
            next(iterations)
        del iterations
    for way in WITHOUT_OPTIMIZER:
        with traincope.run(f"{directory}/{way}", budget=None):
            iterations = WITHOUT_OPTIMIZER[way]()
            for _ in range(5):
                next(iterations)


def test_without_an_optimizer_the_weights_show_the_steps(tmp_path: Path, victims: Victims) -> None:
    assert victims.train(train_without_optimizer, tmp_path).code == 0
    for way in ("ended", *WITHOUT_OPTIMIZER):
        assert recorded_steps(tmp_path / way) == [(number, Flag.GUESSED) for number in range(5)], way


def train_doubtful(directory: str) -> None:
    for way, (iterations_of, _) in DOUBTFUL.items():
        with traincope.run(f"{directory}/{way}", budget=None):
            iterations = iterations_of()
            for _ in range(6):
                next(iterations)


def test_steps_that_the_weights_do_not_show_for_certain_say_so(tmp_path: Path, victims: Victims) -> None:
    assert victims.train(train_doubtful, tmp_path).code == 0
    for way, (_, flags) in DOUBTFUL.items():
        assert recorded_steps(tmp_path / way) == list(enumerate(flags)), way


def train_unseen(directory: str) -> None:
    """No sign of an update: once with a module, once with a new matrix each time, and once a few times only."""
    trained = model()
    with traincope.run(f"{directory}/module", budget=None):
        for _ in range(NO_OPTIMIZER_AFTER + 4):
            backward(trained)
            for parameter in trained.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.1 * parameter.grad
                parameter.grad.zero_()
    weight = torch.ones(4, 1, requires_grad=True)
    for way, number in (("matrix", NO_OPTIMIZER_AFTER + 4), ("few", 2)):
        with traincope.run(f"{directory}/{way}", budget=None):
            for _ in range(number):
                (gradient,) = torch.autograd.grad((torch.ones(2, 4) @ weight).sum(), weight)
                weight = (weight - 0.1 * gradient).detach().requires_grad_()


def test_without_a_sign_of_an_update_backward_calls_count_after_a_while_and_say_so(
    tmp_path: Path, victims: Victims
) -> None:
    assert victims.train(train_unseen, tmp_path).code == 0
    counted = Flag.GUESSED | Flag.BY_BACKWARD
    for way in ("module", "matrix"):
        assert recorded_steps(tmp_path / way) == [(number, counted) for number in range(5)]
        assert backwards(tmp_path / way) == [NO_OPTIMIZER_AFTER, 1, 1, 1, 1]
    assert recorded_steps(tmp_path / "few") == [(0, counted)]
    report = to_document(analyze(open_run(tmp_path / "module")))
    assert "4 steps, true number unknown" in ", ".join(facts(report))
    assert any("the number of steps is unknown" in line for line in sentences(report, recording(report)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("step", [lambda step: step, partial(torch.compile, backend="aot_eager")])
def test_two_models_trained_in_turn_have_one_step_per_turn(tmp_path: Path, step: Callable[[Any], Any]) -> None:
    """A GAN: the step ends with the critic's step. So the generator's last step counts as one too many."""
    critic, generator = model(), model()
    both = [(network, torch.optim.SGD(network.parameters(), lr=0.1)) for network in (critic, generator)]
    turns = [(network, optimizer, step(optimizer.step)) for network, optimizer in both]
    with traincope.run(tmp_path / "run", budget=None):
        for _ in range(5):
            for network, optimizer, advance in turns:
                backward(network)
                advance()
                optimizer.zero_grad()
    assert recorded_steps(tmp_path / "run") == [(number, Flag.GUESSED) for number in range(6)]
    assert backwards(tmp_path / "run") == [1, 2, 2, 2, 2, 1]


def backwards(path: Path) -> list[int]:
    """Return the number of records per step."""
    main = read_run(path).ranks[0].thread("main")
    steps = main[(main["kind"] == Kind.PHASE) & (main["phase"] == Phase.BACKWARD)]["step"]
    return [int((steps == step).sum()) for step in sorted(set(steps))]


def test_a_step_with_overflowed_gradients_is_marked_skipped(tmp_path: Path) -> None:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with traincope.run(tmp_path / "run", budget=None):
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(trained(torch.ones(2, 4)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    flags = [flag for _, flag in recorded_steps(tmp_path / "run")]
    assert flags == [Flag.GUESSED, Flag.GUESSED | Flag.SKIPPED, Flag.GUESSED]
