"""Each layout trains the same model: losses, gradient norms and weights equal those of a single process.

Tolerances are absolute, for losses around 5 and gradient norms around 1.5; the order of sums differs. In fp32 the
largest difference over five steps was 1e-6, and the tolerance of losses, norms and weights is 5e-6. In bf16 it was 4e-3
(FSDP also keeps activations in bf16), and the tolerance is 1e-2. Weights move by 1e-2 in bf16. Their root mean square
difference per parameter was 2.2e-4, and the tolerance is 5e-4. `test_gradients.py` compares gradients with one process
before Adam evens them out.
"""

import numpy as np
import pytest

from tests.distributed.layouts import Outcome, small_config, train
from tests.distributed.ranks.pool import Pool
from tests.distributed.selection import swept
from traincope.engine.config import ParallelConfig

FP32 = 5e-6
BF16 = 1e-2
BF16_WEIGHTS = 5e-4

TWO_RANKS = {
    "ddp": ParallelConfig(dp=2),
    "fsdp": ParallelConfig(fsdp=2),
    "tp": ParallelConfig(tp=2),
    "tp that repeats the norms": ParallelConfig(tp=2, sequence_parallel=False),
    "cp ring": ParallelConfig(cp=2),
    "cp ulysses": ParallelConfig(cp=2, cp_method="ulysses"),
    "pp gpipe": ParallelConfig(pp=2, schedule="gpipe", microbatches=4),
    "pp 1f1b": ParallelConfig(pp=2, schedule="1f1b", microbatches=4),
}
FOUR_RANKS = {
    "ddp": ParallelConfig(dp=4),
    "fsdp": ParallelConfig(fsdp=4),
    "hsdp": ParallelConfig(dp_replicate=2, fsdp=2),
    "pp gpipe": ParallelConfig(pp=4, schedule="gpipe", microbatches=4),
    "pp 1f1b": ParallelConfig(pp=4, schedule="1f1b", microbatches=4),
    "pp 1f1b with fewer microbatches than stages": ParallelConfig(pp=4, schedule="1f1b", microbatches=2),
    "pp x fsdp": ParallelConfig(pp=2, fsdp=2, schedule="1f1b", microbatches=4),
    "pp x ddp": ParallelConfig(pp=2, dp=2, schedule="1f1b", microbatches=4),
    "dp x tp": ParallelConfig(dp=2, tp=2),
    "fsdp x tp": ParallelConfig(fsdp=2, tp=2),
    "fsdp x tp that repeats the norms": ParallelConfig(fsdp=2, tp=2, sequence_parallel=False),
    "pp x tp": ParallelConfig(pp=2, tp=2, schedule="1f1b", microbatches=4),
    "cp ring": ParallelConfig(cp=4),
    "fsdp x cp": ParallelConfig(fsdp=2, cp=2),
    "fsdp x cp ulysses": ParallelConfig(fsdp=2, cp=2, cp_method="ulysses"),
    "dp x cp": ParallelConfig(dp=2, cp=2),
    "hsdp over cp": ParallelConfig(dp_replicate=2, cp=2),
    "cp x tp": ParallelConfig(cp=2, tp=2),
    "pp x cp": ParallelConfig(pp=2, cp=2, schedule="1f1b", microbatches=4),
    "pp zb-v x cp": ParallelConfig(pp=2, cp=2, schedule="zb-v", microbatches=4),
    "pp zb-v x tp": ParallelConfig(pp=2, tp=2, schedule="zb-v", microbatches=4),
}


@pytest.fixture(scope="session")
def alone(text: str) -> Outcome:
    return train(small_config(text, ParallelConfig()))


@pytest.fixture(scope="session")
def alone_in_bf16(text: str) -> Outcome:
    return train(small_config(text, ParallelConfig(), precision="bf16"))


def differences(outcomes: list[Outcome], reference: Outcome) -> dict[str, float]:
    """Largest absolute difference over ranks and steps."""

    def largest(pairs: list[tuple[float, float]]) -> float:
        return max(abs(value - other) for value, other in pairs)

    return {
        "loss": largest([p for o in outcomes for p in zip(o.losses, reference.losses, strict=True)]),
        "grad_norm": largest([p for o in outcomes for p in zip(o.grad_norms, reference.grad_norms, strict=True)]),
        "held_out": largest([(o.held_out, reference.held_out) for o in outcomes]),
    }


def assert_equal(outcomes: list[Outcome], reference: Outcome, *, tolerance: float) -> None:
    errors = differences(outcomes, reference)
    assert max(errors.values()) < tolerance, errors


def test_the_reference_training_learns_and_clips(alone: Outcome) -> None:
    assert alone.losses[-1] < alone.losses[0] - 0.2
    assert min(alone.grad_norms) > 0.25


def assert_same_weights(outcomes: list[Outcome], reference: Outcome) -> None:
    names = set()
    for outcome in outcomes:
        names.update(outcome.parameters)
        for name, parameter in outcome.parameters.items():
            np.testing.assert_allclose(parameter, reference.parameters[name], atol=FP32, rtol=0.0)
    assert names == set(reference.parameters)


def assert_close_weights(outcomes: list[Outcome], reference: Outcome) -> None:
    """Compare root mean squares: Adam turns a tiny gradient of the other sign into a whole opposite step."""
    for outcome in outcomes:
        for name, parameter in outcome.parameters.items():
            apart = float(np.sqrt(np.square(parameter - reference.parameters[name]).mean()))
            assert apart < BF16_WEIGHTS, (name, apart)


@pytest.mark.parametrize("layout", swept(TWO_RANKS, but=["fsdp", "cp ring"]))
def test_two_ranks_train_as_one(two_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    outcomes = two_ranks.run(train, small_config(text, TWO_RANKS[layout]))
    assert_equal(outcomes, alone, tolerance=FP32)
    assert_same_weights(outcomes, alone)


USUAL = (
    "hsdp",
    "pp 1f1b",
    "pp x fsdp",
    "pp x ddp",
    "dp x cp",
)
"""`test_gradients.py` trains "fsdp x tp" and "pp zb-v x cp"."""


@pytest.mark.parametrize("layout", swept(FOUR_RANKS, but=USUAL))
def test_four_ranks_train_as_one(four_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    outcomes = four_ranks.run(train, small_config(text, FOUR_RANKS[layout]))
    assert_equal(outcomes, alone, tolerance=FP32)
    assert_same_weights(outcomes, alone)
    assert len({tuple(outcome.losses) for outcome in outcomes}) == 1
    assert len({tuple(outcome.grad_norms) for outcome in outcomes}) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("layout", TWO_RANKS)
def test_accumulation_changes_nothing_on_two_ranks(two_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    parallel = TWO_RANKS[layout]
    accumulation = 4 if parallel.pp == 1 else 2
    config = small_config(text, parallel, accumulation=accumulation)
    assert_equal(two_ranks.run(train, config), alone, tolerance=FP32)


@pytest.mark.parametrize("layout", swept(["hsdp", "pp x fsdp", "pp x ddp", "dp x tp", "cp x tp"], but=["pp x fsdp"]))
def test_accumulation_changes_nothing_on_four_ranks(four_ranks: Pool, text: str, alone: Outcome, layout: str) -> None:
    config = small_config(text, FOUR_RANKS[layout], accumulation=2)
    assert_equal(four_ranks.run(train, config), alone, tolerance=FP32)


def test_accumulation_changes_nothing_in_one_process(text: str, alone: Outcome) -> None:
    assert_equal([train(small_config(text, ParallelConfig(), accumulation=4))], alone, tolerance=FP32)


@pytest.mark.parametrize(
    "layout",
    swept(["ddp", "hsdp", "dp x tp", "dp x cp", "pp gpipe", "pp x fsdp", "pp x tp", "pp x cp"], but=["hsdp"]),
)
def test_bf16_layouts_agree(four_ranks: Pool, text: str, alone_in_bf16: Outcome, layout: str) -> None:
    outcomes = four_ranks.run(train, small_config(text, FOUR_RANKS[layout], precision="bf16"))
    assert_equal(outcomes, alone_in_bf16, tolerance=BF16)
    assert_close_weights(outcomes, alone_in_bf16)


def test_bf16_is_not_fp32(alone: Outcome, alone_in_bf16: Outcome) -> None:
    assert differences([alone_in_bf16], alone)["loss"] > FP32


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch": 32}], ids=["another seed", "another batch"])
def test_the_comparison_detects_a_different_training(text: str, alone: Outcome, change: dict[str, int]) -> None:
    assert differences([train(small_config(text, ParallelConfig(), **change))], alone)["loss"] > 100 * FP32


@pytest.mark.parametrize(
    ("layout", "mode"),
    [
        pytest.param("cp x tp", "pointwise", marks=pytest.mark.sweep),
        pytest.param("cp x tp", "selective", marks=pytest.mark.sweep),
        ("fsdp x cp ulysses", "selective"),
        pytest.param("fsdp x tp", "full", marks=pytest.mark.sweep),
        pytest.param("pp x fsdp", "full", marks=pytest.mark.sweep),
    ],
)
def test_recomputation_changes_nothing(four_ranks: Pool, text: str, alone: Outcome, layout: str, mode: str) -> None:
    outcomes = four_ranks.run(train, small_config(text, FOUR_RANKS[layout], recompute=mode))
    assert_equal(outcomes, alone, tolerance=FP32)
