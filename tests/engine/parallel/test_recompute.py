"""Recomputation gives the same numbers to the bit, and keeps as much less as the shapes predict."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from traincope.engine.config import Config, DataConfig, ModelConfig, TrainConfig
from traincope.engine.model.documents import document_arguments
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT, next_token_loss
from traincope.engine.parallel.recompute import apply_recompute
from traincope.engine.trainer import StepResult, Trainer

MODES = ["none", "pointwise", "selective", "full"]
SEQUENCES = 3
MODEL = ModelConfig(layers=1, hidden=32, heads=4, kv_heads=2, ffn=80, sequence=24)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", MODES[1:])
def test_recomputation_gives_the_same_losses_and_norms_to_the_bit(tmp_path: Path, mode: Any, precision: Any) -> None:
    text = tmp_path / "abc.txt"
    text.write_text("abcdefgh" * 200)

    def run(mode: Any) -> list[StepResult]:
        train = TrainConfig(steps=5, batch=8, recompute=mode, precision=precision)
        config = Config(model=MODEL, data=DataConfig(path=str(text)), train=train)
        return list(Trainer(config, device=torch.device("cpu")).steps())

    assert run(mode) == run("none")


class Stage:
    """The last stage of a pipeline: blocks and output, on activations."""

    def __init__(self, mode: Any, *, layers: int | None = None, dropout: float = 0.0, splits: bool = True) -> None:
        config = replace(MODEL, layers=3, dropout=dropout)
        self.model = GPT(config, is_first=False)
        initialise(self.model, config, seed=0)
        apply_recompute(self.model, mode, layers=layers, splits_backward=splits)
        self.runs: list[str] = []
        for name, module in self.model.blocks.named_modules():
            if name.endswith(("attention_norm", "core")):
                module.register_forward_pre_hook(lambda *_, name=name: self.runs.append(name))
        self.x = torch.randn(SEQUENCES, MODEL.sequence, MODEL.hidden, generator=torch.Generator().manual_seed(0))
        self.x.requires_grad_()
        self.targets = torch.arange(SEQUENCES * MODEL.sequence).view(SEQUENCES, MODEL.sequence) % 7

    def forward(self) -> Tensor:
        torch.manual_seed(1)
        return next_token_loss(self.model(self.x), self.targets)

    def gradients(self) -> list[Tensor | None]:
        return [self.x.grad, *(parameter.grad for parameter in self.model.parameters())]


def split_backward(stage: Stage, loss: Tensor) -> Iterator[str]:
    """I and W, as torch's pipelines run them; yields before each."""
    yield "I"
    _, groups = stage_backward_input([loss], None, [stage.x], stage.model.parameters())
    yield "W"
    stage_backward_weight(stage.model.parameters(), groups)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("mode", MODES)
def test_a_split_backward_gives_the_gradients_of_a_whole_one_to_the_bit(mode: str, dropout: float) -> None:
    whole, split = Stage("none", dropout=dropout), Stage(mode, dropout=dropout)
    whole.forward().backward()
    assert list(split_backward(split, split.forward())) == ["I", "W"]
    for gradient, expected in zip(split.gradients(), whole.gradients(), strict=True):
        assert gradient is not None
        assert expected is not None
        assert torch.equal(gradient, expected)


@pytest.mark.parametrize("layers", [None, 2])
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_split_backward_computes_again_once_and_in_i(mode: str, layers: int | None) -> None:
    """Full and pointwise run blocks again, selective attention's core, in the stage's first layers."""
    stage = Stage(mode, layers=layers)
    loss = stage.forward()
    stage.runs.clear()
    again: dict[str, list[str]] = {}
    for kind in split_backward(stage, loss):
        again[kind] = list(stage.runs)
    in_i, in_w = again["W"], stage.runs[len(again["W"]) :]
    assert again["I"] == in_w == []
    part = "attention.core.core" if mode == "selective" else "attention_norm"
    assert sorted(name for name in in_i if name.endswith(part)) == [f"{layer}.{part}" for layer in range(layers or 3)]


def test_torchs_checkpoint_would_compute_again_for_each_weight() -> None:
    """The reason for keeping what I computed: if torch did so itself, this would fail."""
    stage = Stage("full", splits=False)
    loss = stage.forward()
    stage.runs.clear()
    list(split_backward(stage, loss))
    assert stage.runs.count("0.attention_norm") > 2


def test_a_split_backward_keeps_only_inputs_until_i_and_everything_until_w() -> None:
    """Numbers of one of three blocks: h after forward; what is kept without recomputation after I; nothing after W."""

    def kept(mode: str) -> list[int]:
        stage = Stage(mode)
        stage.forward()
        with Alive([*stage.model.parameters(), stage.x, stage.targets]) as alive:
            sizes = []
            for _ in split_backward(stage, stage.forward()):
                sizes.append(alive.num_bytes() - _gradient_bytes(stage))
        return [*sizes, alive.num_bytes() - _gradient_bytes(stage)]

    (full_f, full_i, full_w), (none_f, none_i, none_w) = kept("full"), kept("none")
    block = 4 * SEQUENCES * MODEL.sequence * (kept_numbers()["none"] - kept_numbers()["full"])
    assert none_f - full_f == 3 * block
    assert full_i == none_i
    assert full_w == none_w == 0


def _gradient_bytes(stage: Stage) -> int:
    return sum(4 * gradient.numel() for gradient in stage.gradients() if gradient is not None)


class Alive(TorchDispatchMode):
    """Bytes of tensors that operators created and that are still referenced, without `given` ones."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__()
        self._given = {tensor.untyped_storage()._cdata for tensor in given}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._given:
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def num_bytes(self) -> int:
        return sum(size for reference, size in self._made.values() if not reference.expired())


def kept_by_a_block(mode: Any, *, end: int | None) -> int:
    """Numbers that three blocks keep after forward minus those that two keep."""

    def kept(layers: int) -> int:
        config = replace(MODEL, layers=layers)
        model = GPT(config)
        initialise(model, config, seed=0)
        apply_recompute(model, mode)
        tokens = torch.arange(SEQUENCES * MODEL.sequence).view(SEQUENCES, MODEL.sequence) % 7
        arguments = document_arguments(tokens, end=end)
        model(tokens, **arguments)
        with Alive(model.parameters()) as alive:
            logits = model(tokens, **arguments)
            num_bytes = alive.num_bytes()
        del logits
        return num_bytes

    return kept(3) - kept(2)


@pytest.mark.parametrize("end", [None, 5], ids=["whole sequences", "documents of 7 tokens"])
@pytest.mark.parametrize("mode", MODES)
def test_a_block_keeps_as_many_numbers_as_the_shapes_predict(mode: str, end: int | None) -> None:
    """Numbers per token. `none` is as in tests/distributed/costs/test_tensor_parallel.py.

    One of its 9 h is the block's input. Selective lacks attention's output, which is also kept once with its heads
    joined, and the rows' logarithms.
    """
    assert kept_by_a_block(mode, end=end) == 4 * SEQUENCES * MODEL.sequence * kept_numbers()[mode]


def kept_numbers() -> dict[str, int]:
    """Mode -> numbers that a block keeps per token."""
    h, kv, f, heads = MODEL.hidden, MODEL.kv_heads * MODEL.hidden // MODEL.heads, MODEL.ffn, MODEL.heads
    return {
        "none": 9 * h + 2 * kv + heads + 2 + 4 * f,
        "pointwise": h + (3 * h + 2 * kv + 2 * f) + (h + heads),
        "selective": 8 * h + 2 * kv + 2 + 4 * f,
        "full": h,
    }
