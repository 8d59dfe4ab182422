"""Recordings of expert parallelism: its axes, bytes, FLOPs, and the hot expert."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import traincope
from tests.distributed.equality.test_expert_parallel import CAPPED, UNCAPPED, config_of
from tests.distributed.ranks.pool import Pool
from tests.distributed.recorded.test_axes import BLOCK, FLOAT, NORMS, STEPS, B, F, H, L, S, Table, V, fsdp_table
from traincope.analysis import Analysis, LossKind, loss_breakdown
from traincope.analysis.efficiency.peaks import Peak
from traincope.cli.launch.worker import expert_values, settings
from traincope.engine.config import Config, ExpertsConfig, ParallelConfig
from traincope.engine.trainer import Trainer
from traincope.plan.model.flops import attention_forward, step_flops
from traincope.plan.model.transformer import Experts, Transformer

E, K, W = UNCAPPED.number, UNCAPPED.top_k, UNCAPPED.ffn
"""Experts of a layer, experts per token, and the width of an expert."""
INT64 = 8
ROWS = B * S * K * H * FLOAT
"""Bytes that all tokens send to their experts in one layer, on all ranks together."""
DENSE = L * (BLOCK - 3 * H * F + E * H) + 2 * V * H + NORMS
"""Weights outside experts: routers replace feed-forwards."""


def train(directory: str, config: Config) -> None:
    with traincope.run(directory) as run:
        run.describe(**settings(config))
        trainer = Trainer(config, device=torch.device("cpu"))
        for result in trainer.steps():
            run.log(**expert_values(trainer, config, result))
            run.step()


def recorded(pool: Pool, directory: Path, parallel: ParallelConfig, experts: ExpertsConfig, **more: object) -> Analysis:
    """Recording of a training that by default never reads its loss or the load of its experts."""
    text = directory / "text"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    config = config_of(str(text), parallel, experts, **({"steps": STEPS, "log_every": STEPS + 1} | more))
    config = replace(config, model=replace(config.model, vocabulary=V))
    pool.run(train, str(directory / "run"), config)
    return traincope.analyze(traincope.open_run(directory / "run"))


def table(analysis: Analysis, *, ranks: int) -> Table:
    rank_steps = ranks * (STEPS - 1)
    return {(row.axis, row.operation): (row.count // rank_steps, row.num_bytes // rank_steps) for row in analysis.comm}


def test_rows_travel_to_their_experts_and_all_flops_are_those_of_the_formula(two_ranks: Pool, tmp_path: Path) -> None:
    """tokens x top_k x hidden x 4 bytes to the experts and back, in forward and in backward, after their numbers.

    Experts on one rank need no FSDP.
    """
    measured = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2, ep=2), UNCAPPED)
    assert table(measured, ranks=2) == {
        ("ep", "all_to_all"): (5 * L, L * (4 * ROWS // 2 + E * INT64)),
        **fsdp_table("fsdp", weights=DENSE),
    }
    work = measured.utilization.work
    assert work.model == pytest.approx(step_flops(formula(ffn=W), batch=B, causal_half=True).model)
    assert work.redundant == pytest.approx(attention_forward(formula(ffn=W), batch=B) / 4)
    assert work.coverage_ratio == 1


@pytest.mark.sweep
def test_rows_of_a_capacity_have_a_fixed_number_that_is_not_sent(two_ranks: Pool, tmp_path: Path) -> None:
    """Each expert has ceil(1.0 x S x K / E) rows for each sequence, taken or not."""
    measured = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2, ep=2), replace(CAPPED, shared=False))
    rows = E * B * (S * K // E) * H * FLOAT
    assert table(measured, ranks=2)["ep", "all_to_all"] == (4 * L, L * 4 * rows // 2)
    assert [row.message_imbalance for row in measured.comm if row.axis == "ep"] == [None]


def test_in_bf16_routers_are_gathered_in_fp32_as_their_own_units(two_ranks: Pool, tmp_path: Path) -> None:
    """Gathered for forward and for backward, 4 bytes per number of routers and 2 of the rest; all reduced in fp32."""
    measured = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2), replace(UNCAPPED, number=4), precision="bf16")
    routers, experts = L * 4 * H, L * 4 * 3 * H * W
    others = DENSE - L * E * H + experts
    assert table(measured, ranks=2) == {
        ("fsdp", "all_gather"): (2 * (2 * L + 1), 2 * (2 * others + FLOAT * routers)),
        ("fsdp", "reduce_scatter"): (2 * L + 1, FLOAT * (others + routers)),
        ("fsdp", "all_reduce"): (1, FLOAT),
    }


def test_experts_are_sharded_over_the_ranks_with_the_same_experts(four_ranks: Pool, tmp_path: Path) -> None:
    measured = recorded(four_ranks, tmp_path, ParallelConfig(fsdp=4, ep=2), UNCAPPED)
    experts = L * (E // 2) * 3 * H * W * FLOAT
    assert table(measured, ranks=4) == {
        ("ep", "all_to_all"): (5 * L, L * (4 * ROWS // 4 + E * INT64)),
        ("efsdp", "all_gather"): (2 * L, 2 * experts),
        ("efsdp", "reduce_scatter"): (L, experts),
        **fsdp_table("fsdp", weights=DENSE),
    }


@pytest.mark.sweep
def test_with_tp_each_rank_sends_its_channels_to_the_experts(four_ranks: Pool, tmp_path: Path) -> None:
    """Rows go to `ep` with half their channels, and are gathered and summed over `tp` at their experts, in each pass.

    The stream is gathered and reduced three times per block instead of four times, because its share of the experts'
    output is exchanged in each pass. Experts on one rank of `efsdp` need no FSDP.
    """
    traffic = table(recorded(four_ranks, tmp_path, ParallelConfig(fsdp=2, tp=2, ep=2), UNCAPPED), ranks=4)
    rows, stream = ROWS // 2, B * S * H * FLOAT // 2
    assert traffic["ep", "all_to_all"] == (5 * L, L * (4 * rows // 2 + E * INT64))
    assert traffic["tp", "all_to_all"] == (2 * L, 2 * L * stream // 2)
    for operation in ("all_gather", "reduce_scatter"):
        assert traffic["tp", operation] == (3 * L + 2 + 2 * L, (3 * L + 2) * stream + 2 * L * rows)
    assert {axis for axis, _ in traffic} == {"ep", "tp", "fsdp"}


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


def test_padding_counts_as_executed_but_not_as_model_flops(two_ranks: Pool, tmp_path: Path) -> None:
    """The number of rows is the number of choices, so each dropped choice makes one row of padding.

    Backward takes twice the forward.
    """
    measured = recorded(two_ranks, tmp_path, ParallelConfig(fsdp=2, ep=2), replace(CAPPED, shared=False), log_every=1)
    work, loads = measured.utilization.work, measured.experts
    assert loads is not None
    assert loads.padding == loads.dropped > 0
    assert loads.rows + loads.padding == L * B * S * K
    padding = loads.padding * 3 * (3 * 2 * H * W)
    assert work.model == pytest.approx(step_flops(formula(ffn=W), batch=B, causal_half=True).model - padding)
    assert work.redundant == pytest.approx(padding + attention_forward(formula(ffn=W), batch=B) / 4)
    peak = Peak(device="by hand", flops={"float32": 1e9}, source="one FLOP a nanosecond")
    losses = loss_breakdown(replace(measured, utilization=replace(measured.utilization, peak=peak)))
    (lost,) = (loss for loss in losses if loss.kind is LossKind.EXPERT_PADDING)
    assert lost.ns == pytest.approx((STEPS - 1) * padding)


def test_the_hot_expert_is_identified_on_its_rank(four_ranks: Pool, tmp_path: Path) -> None:
    """Each token goes to expert 5 and to one other, so expert 5 gets E / 2 times its fair share.

    It lies on the third of four ranks, which gets, and sends back, at least B S of the 2 B S rows.
    """
    hot = replace(UNCAPPED, hot_expert=5, balance=0.0)
    measured = recorded(four_ranks, tmp_path, ParallelConfig(fsdp=4, ep=4), hot, log_every=1)
    assert measured.experts is not None
    assert [(layer.hottest, layer.tokens[5]) for layer in measured.experts.layers] == [(5, B * S)] * L
    assert measured.experts.hottest.ratio == E / 2
    (row,) = (row for row in measured.comm if row.axis == "ep")
    assert row.message_imbalance is not None
    assert row.message_imbalance.ranks == (2,)
    owned = sum(sum(layer.tokens[4:6]) for layer in measured.experts.layers)
    assert row.message_imbalance.ratio == pytest.approx(owned * 4 / measured.experts.rows, rel=0.05)
    assert 0 < row.message_imbalance.cost_ns < row.transfer_ns
