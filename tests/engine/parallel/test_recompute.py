"""Recomputation gives the same numbers to the bit, and keeps as much less as the shapes predict."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from traincope.engine.config import Config, DataConfig, ModelConfig, TrainConfig
from traincope.engine.model.documents import document_arguments
from traincope.engine.model.initialise import initialise
from traincope.engine.model.model import GPT
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
    h, kv, f, heads = MODEL.hidden, MODEL.kv_heads * MODEL.hidden // MODEL.heads, MODEL.ffn, MODEL.heads
    numbers = {
        "none": 9 * h + 2 * kv + heads + 2 + 4 * f,
        "pointwise": h + (3 * h + 2 * kv + 2 * f) + (h + heads),
        "selective": 8 * h + 2 * kv + 2 + 4 * f,
        "full": h,
    }
    assert kept_by_a_block(mode, end=end) == 4 * SEQUENCES * MODEL.sequence * numbers[mode]
