"""Expert parallelism as it is recorded: its axes, its bytes, its FLOPs, and the expert that was made hot."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import traincope
from tests.distributed.layouts import STEPS
from tests.distributed.pool import Pool
from tests.distributed.test_expert_parallel import CAPPED, UNCAPPED, config_of
from tests.distributed.test_recorded_axes import BLOCK, FLOAT, NORMS, B, F, H, L, S, Table, V, fsdp_table
from traincope.analysis import Analysis, LossKind, finer_losses
from traincope.analysis.peaks import Peak
from traincope.cli.worker import expert_values, settings
from traincope.engine.config import Config, ExpertsConfig, ParallelConfig
from traincope.engine.trainer import Trainer
from traincope.plan.flops import attention_forward, step_flops
from traincope.plan.transformer import Experts, Transformer

E, K, W = UNCAPPED.number, UNCAPPED.top_k, UNCAPPED.ffn
"""Experts of a layer, of a token, and the width of one."""
INT64 = 8
ROWS = B * S * K * H * FLOAT
"""What all tokens send to their experts in one layer, on all ranks together."""
DENSE = L * (BLOCK - 3 * H * F + E * H) + 2 * V * H + NORMS
"""Weights that are no expert's: routers have stepped in for feed-forwards."""


def train(directory: str, config: Config) -> None:
    with traincope.run(directory) as run:
        run.describe(**settings(config))
        trainer = Trainer(config, device=torch.device("cpu"))
        for result in trainer.steps():
            run.log(**expert_values(trainer, config, result))
            run.step()


def recorded(pool: Pool, directory: Path, parallel: ParallelConfig, experts: ExpertsConfig, **more: object) -> Analysis:
    """Of a training that by default never looks at its loss, nor at the load of its experts."""
    text = directory / "text"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    config = config_of(str(text), parallel, experts, **({"log_every": STEPS + 1} | more))
    config = replace(config, model=replace(config.model, vocabulary=V))
    pool.run(train, str(directory / "run"), config)
    return traincope.analyze(traincope.open_run(directory / "run"))


def table(analysis: Analysis, *, ranks: int) -> Table:
    rank_steps = ranks * (STEPS - 1)
    return {(row.axis, row.operation): (row.count // rank_steps, row.num_bytes // rank_steps) for row in analysis.comm}


def test_rows_go_there_and_back_twice_and_their_numbers_before_them(two_ranks: Pool, tmp_path: Path) -> None:
    """tokens x top_k x hidden x 4 bytes each way, in forward and in backward; experts on one rank need no FSDP."""
    found = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2, ep=2), UNCAPPED)
    assert table(found, ranks=2) == {
        ("ep", "all_to_all"): (5 * L, L * (4 * ROWS // 2 + E * INT64)),
        **fsdp_table("fsdp", weights=DENSE),
    }


def test_rows_of_a_capacity_are_always_the_same_and_need_no_numbers(two_ranks: Pool, tmp_path: Path) -> None:
    """Each expert has ceil(1.0 x S x K / E) rows for each sequence, taken or not."""
    found = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2, ep=2), replace(CAPPED, shared=False))
    rows = E * B * (S * K // E) * H * FLOAT
    assert table(found, ranks=2)["ep", "all_to_all"] == (4 * L, L * 4 * rows // 2)
    assert [row.uneven for row in found.comm if row.axis == "ep"] == [None]


def test_in_bf16_routers_travel_whole_as_units_of_their_own(two_ranks: Pool, tmp_path: Path) -> None:
    """Gathered for forward and for backward, 2 bytes a number of all else and 4 of theirs; all is reduced in fp32."""
    found = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2), replace(UNCAPPED, number=4), precision="bf16")
    routers, experts = L * 4 * H, L * 4 * 3 * H * W
    others = DENSE - L * E * H + experts
    assert table(found, ranks=2) == {
        ("fsdp", "all_gather"): (2 * (2 * L + 1), 2 * (2 * others + FLOAT * routers)),
        ("fsdp", "reduce_scatter"): (2 * L + 1, FLOAT * (others + routers)),
        ("fsdp", "all_reduce"): (1, FLOAT),
    }


def test_experts_are_sharded_over_the_ranks_that_have_the_same(four_ranks: Pool, tmp_path: Path) -> None:
    found = recorded(four_ranks, tmp_path, ParallelConfig(fsdp=4, ep=2), UNCAPPED)
    experts = L * (E // 2) * 3 * H * W * FLOAT
    assert table(found, ranks=4) == {
        ("ep", "all_to_all"): (5 * L, L * (4 * ROWS // 4 + E * INT64)),
        ("efsdp", "all_gather"): (2 * L, 2 * experts),
        ("efsdp", "reduce_scatter"): (L, experts),
        **fsdp_table("fsdp", weights=DENSE),
    }


def test_of_cut_experts_each_rank_sends_its_channels(four_ranks: Pool, tmp_path: Path) -> None:
    """Rows: half as many channels to `ep`, put together and summed over `tp` where they arrive, each way.

    The stream is gathered and reduced thrice a block in place of four times, for its share in what experts made is
    exchanged, each way. Experts on one rank of `efsdp` need no FSDP.
    """
    seen = table(recorded(four_ranks, tmp_path, ParallelConfig(fsdp=2, tp=2, ep=2), UNCAPPED), ranks=4)
    rows, stream = ROWS // 2, B * S * H * FLOAT // 2
    assert seen["ep", "all_to_all"] == (5 * L, L * (4 * rows // 2 + E * INT64))
    assert seen["tp", "all_to_all"] == (2 * L, 2 * L * stream // 2)
    for operation in ("all_gather", "reduce_scatter"):
        assert seen["tp", operation] == (3 * L + 2 + 2 * L, (3 * L + 2) * stream + 2 * L * rows)
    assert {axis for axis, _ in seen} == {"ep", "tp", "fsdp"}


def formula(*, ffn: int) -> Transformer:
    return Transformer(
        layers=L,
        hidden=H,
        heads=4,
        kv_heads=2,
        vocabulary=V,
        sequence=S,
        gated_mlp=True,
        experts=Experts(count=E, top_k=K, ffn=ffn),
    )


def test_all_experts_together_execute_what_the_formula_says(two_ranks: Pool, tmp_path: Path) -> None:
    work = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2, ep=2), UNCAPPED).utilization.work
    assert work.model == pytest.approx(step_flops(formula(ffn=W), batch=B, causal_half=True).model)
    assert work.redundant == pytest.approx(attention_forward(formula(ffn=W), batch=B) / 4)
    assert work.coverage_ratio == 1


def test_padding_is_executed_but_is_no_model_flop(two_ranks: Pool, tmp_path: Path) -> None:
    """As many rows as choices: what is dropped makes as much padding. Backward takes twice the forward."""
    found = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2, ep=2), replace(CAPPED, shared=False), log_every=1)
    work, loads = found.utilization.work, found.experts
    assert loads is not None
    assert loads.padding == loads.dropped > 0
    assert loads.rows + loads.padding == L * B * S * K
    padding = loads.padding * 3 * (3 * 2 * H * W)
    assert work.model == pytest.approx(step_flops(formula(ffn=W), batch=B, causal_half=True).model - padding)
    assert work.redundant == pytest.approx(padding + attention_forward(formula(ffn=W), batch=B) / 4)
    peak = Peak(device="by hand", flops={"float32": 1e9}, source="one FLOP a nanosecond")
    losses = finer_losses(replace(found, utilization=replace(found.utilization, peak=peak)))
    (lost,) = (loss for loss in losses if loss.kind is LossKind.EXPERT_PADDING)
    assert lost.ns == pytest.approx((STEPS - 1) * padding)


def test_the_expert_that_was_made_hot_is_found_on_its_rank(four_ranks: Pool, tmp_path: Path) -> None:
    """Every token goes to expert 5, and to one of the others: E times the half of what there is.

    It is on the third of four ranks, which gets, and sends back, at least B S of the 2 B S rows.
    """
    hot = replace(UNCAPPED, hot_expert=5, balance=0.0)
    found = recorded(four_ranks, tmp_path, ParallelConfig(fsdp=4, ep=4), hot, log_every=1)
    assert found.experts is not None
    assert [(layer.hottest, layer.tokens[5]) for layer in found.experts.layers] == [(5, B * S)] * L
    assert found.experts.hottest.ratio == E / 2
    (row,) = (row for row in found.comm if row.axis == "ep")
    assert row.uneven is not None
    assert row.uneven.ranks == (2,)
    owned = sum(sum(layer.tokens[4:6]) for layer in found.experts.layers)
    assert row.uneven.ratio == pytest.approx(owned * 4 / found.experts.rows, rel=0.05)
    assert 0 < row.uneven.cost_ns < row.transfer_ns
