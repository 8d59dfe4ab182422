"""Steps in another layout, from two recorded trainings. `python -m evaluation.truth predicted` makes them too."""

import json
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from traincope.analysis import Analysis, SettingsPrediction, analyze, parse_settings, predict_settings
from traincope.analysis.what_if.layout_change import (
    Declared,
    _copying_seconds,
    _predict,
    check_sharing,
    new_layout,
)
from traincope.analysis.what_if.rates import measured_rates
from traincope.analysis.what_if.settings import Settings
from traincope.errors import UsageError
from traincope.plan.layout.layout import Layout, Overlap, Place
from traincope.plan.layout.machine import Algorithm, Host, Machine, Tier
from traincope.plan.layout.prediction import AxisTime, Prediction
from traincope.plan.model.transformer import Experts, Transformer
from traincope.timeline import open_run

SAMPLES = Path(__file__).parents[3] / "sample_runs"
EIGHT = Layout(dp=2, cp=2, zero=3, microbatches=2, micro_batch=6)
"""24 sequences of a step."""
MICROBATCHES = 8
"""Microbatches of the sample run."""


@cache
def run(name: str) -> Analysis:
    return analyze(open_run(SAMPLES / name))


def predicted(name: str, expression: str) -> SettingsPrediction:
    settings = parse_settings(expression)
    assert settings is not None
    return predict_settings(run(name), settings)


def test_the_batch_stays_and_is_divided_anew() -> None:
    changed = new_layout(EIGHT, Settings(dp=4, cp=1))
    assert (changed.dp, changed.cp, changed.micro_batch, changed.batch) == (4, 1, 3, EIGHT.batch)
    assert new_layout(EIGHT, Settings(zero=1)).micro_batch == EIGHT.micro_batch


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="24 sequences does not divide into dp = 5 x 2 microbatches"):
        new_layout(EIGHT, Settings(dp=5))


def test_sizes_are_those_that_the_run_declares() -> None:
    declared = Declared.of(run("demo").timeline.run.info.settings)
    assert declared.layout == Layout(
        dp=2, pp=2, zero=1, microbatches=8, micro_batch=2, overlap=Overlap.DATA, fused_sums=False
    )
    assert declared.shape == Transformer(
        layers=6,
        hidden=256,
        heads=8,
        kv_heads=4,
        ffn=704,
        vocabulary=257,
        sequence=128,
        gated_mlp=True,
        untied=True,
    )


def test_experts_of_a_run_are_read() -> None:
    settings = dict(run("demo").timeline.run.info.settings)
    settings["experts"] = {"number": 8, "top_k": 2, "ffn": 352, "shared": True}
    assert Declared.of(settings).shape.experts == Experts(count=8, top_k=2, ffn=352, shared=1, shared_ffn=704)


def recorded(
    *,
    dp: int = 1,
    fsdp: int = 1,
    pp: int = 1,
    dp_replicate: int = 1,
    precision: str = "bf16",
    batch: int = 32,
    ddp: dict[str, object] | None = None,
    fsdp_table: dict[str, object] | None = None,
) -> dict[str, Any]:
    """Settings of a run, with these sizes and tables."""
    settings = dict(run("demo").timeline.run.info.settings)
    settings["parallel"] = settings["parallel"] | {"dp": dp, "fsdp": fsdp, "pp": pp, "dp_replicate": dp_replicate}
    settings["train"] = settings["train"] | {"precision": precision, "batch": batch}
    settings["ddp"] = settings["ddp"] | (ddp or {})
    settings["fsdp"] = settings["fsdp"] | (fsdp_table or {})
    return settings


def dp_seconds(settings: dict[str, Any], change: Settings) -> float:
    """Seconds on dp after a change, at 1 GB/s and without latency."""
    machine = Machine(peak_flops=1e12, memory_bytes=1, node_bytes_per_second=1e9, network_bytes_per_second=1e9)
    declared = Declared.of(settings)
    return _predict(declared, new_layout(declared.layout, change), machine).axis_seconds["dp"]


SHARDED = Settings(zero=3)
REPLICATED = Settings(zero=1)
STAGE_1 = {"dp": 4, "ddp": {"shard_optimizer": True}}


@pytest.mark.parametrize(
    ("run_settings", "change", "so_recorded", "num_bytes"),
    [
        ({"dp": 4}, SHARDED, {"fsdp": 4}, MICROBATCHES * (2 * 2 + 4)),
        ({"fsdp": 4}, REPLICATED, STAGE_1, 4 + 4),
        ({"fsdp": 4}, Settings(zero=0), {"dp": 4}, 2 * 4),
        ({"dp": 4, "precision": "fp16"}, SHARDED, {"fsdp": 4, "precision": "fp16"}, MICROBATCHES * (2 * 2 + 4)),
        ({"dp": 4, "precision": "fp32"}, SHARDED, {"fsdp": 4, "precision": "fp32"}, MICROBATCHES * (2 * 4 + 4)),
        ({"fsdp": 4, "fsdp_table": {"reduce": "bf16"}}, REPLICATED, STAGE_1, 8),
    ],
)
def test_messages_have_the_numbers_of_the_new_layout(
    run_settings: dict[str, Any], change: Settings, so_recorded: dict[str, Any], num_bytes: int
) -> None:
    """FSDP gathers in the training's numbers, DDP sends fp32: 3 / 4 of these bytes of each parameter, on 4 ranks."""
    settings = recorded(**run_settings)
    seconds = dp_seconds(settings, change)
    assert seconds == pytest.approx(3 / 4 * num_bytes * Declared.of(settings).shape.parameters / 1e9)
    assert seconds == dp_seconds(recorded(**so_recorded), Settings())


INT8 = 1 + 4 / 256
"""Bytes of a number with its share of a scale."""


@pytest.mark.parametrize(
    ("change", "so_recorded", "num_bytes"),
    [
        (Settings(quantize_weights=True), {"quantize_weights": True}, 3 / 4 * (2 * INT8 + 4)),
        (Settings(quantize_gradients=True), {"quantize_gradients": True}, 3 / 4 * (2 * 2 + INT8)),
        (Settings(node_ranks=2), {"node_ranks": 2}, 3 / 4 * 2 + 1 / 2 * 2 + 3 / 4 * 4),
        (
            Settings(node_ranks=2, quantize_weights=True, quantize_gradients=True),
            {"node_ranks": 2, "quantize_weights": True, "quantize_gradients": True},
            3 / 4 * INT8 + 1 / 2 * 2 + 3 / 4 * INT8,
        ),
    ],
)
def test_zeropp_sends_int8_and_gathers_for_backward_in_the_node(
    change: Settings, so_recorded: dict[str, object], num_bytes: float
) -> None:
    """Bytes of one parameter and microbatch on 4 ranks, in nodes of 2. A run with ZeRO++ sends the same."""
    plain, with_it = recorded(fsdp=4), recorded(fsdp=4, fsdp_table=so_recorded)
    parameters = Declared.of(plain).shape.parameters
    assert dp_seconds(plain, change) == pytest.approx(MICROBATCHES * num_bytes * parameters / 1e9)
    assert dp_seconds(with_it, Settings()) == dp_seconds(plain, change)
    undone = Settings(node_ranks=1, quantize_weights=False, quantize_gradients=False)
    assert dp_seconds(with_it, undone) == dp_seconds(plain, Settings())


def test_zeropp_needs_shards_of_fsdp() -> None:
    declared = Declared.of(recorded(dp=4, ddp={"shard_optimizer": True}))
    with pytest.raises(UsageError, match="this layout has no shards of FSDP; add zero=2 or zero=3"):
        check_sharing(declared, new_layout(declared.layout, Settings(quantize_weights=True)))
    check_sharing(declared, new_layout(declared.layout, Settings(quantize_weights=True, zero=3)))
    with pytest.raises(UsageError, match="node_ranks is 3; it must divide the 4 ranks"):
        new_layout(declared.layout, Settings(node_ranks=3, zero=3))


SERVER = Host(
    link_bytes_per_second=10e9,
    memory_bytes=1 << 40,
    memory_bytes_per_second=50e9,
    nvme_bytes=1 << 40,
    nvme_bytes_per_second=4e9,
    source="by hand",
)


@pytest.mark.parametrize(
    ("change", "seconds_of_a_parameter"),
    [
        # The CPU passes over 44 bytes. Gradients in fp32 come, and weights in bf16 go back.
        (Settings(offload_optimizer=Place.CPU), 44 / 50e9 + (4 + 2) / 10e9),
        # 12 bytes of state are read from the disk and written.
        (Settings(offload_optimizer=Place.NVME), 2 * 12 / 4e9 + (4 + 2) / 10e9),
    ],
)
def test_offload_takes_the_rates_of_the_server(change: Settings, seconds_of_a_parameter: float) -> None:
    """Each of 4 ranks updates a quarter of the parameters."""
    declared = Declared.of(recorded(fsdp=4))
    machine = Machine(
        peak_flops=1e12, memory_bytes=1, node_bytes_per_second=1e9, network_bytes_per_second=1e9, host=SERVER
    )
    after = _predict(declared, new_layout(declared.layout, change), machine)
    assert after.offload_seconds == pytest.approx(declared.shape.parameters / 4 * seconds_of_a_parameter, rel=1e-4)


def on_device(tmp_path: Path, **device: object) -> Analysis:
    """The sample run, as if its ranks had had this device."""
    copied = tmp_path / "run"
    copytree(SAMPLES / "demo", copied)
    for manifest in copied.rglob("rank*.json"):
        document = json.loads(manifest.read_text(encoding="utf-8"))
        if "device" in document:
            document["device"] = device
            manifest.write_text(json.dumps(document), encoding="utf-8")
    return analyze(open_run(copied))


def test_an_update_on_the_cpu_saves_that_of_the_device(tmp_path: Path) -> None:
    """On an A100's server: 44 bytes over 51.2 GB/s, and 8 over 31.5 GB/s, of half of a stage's parameters."""
    analysis = on_device(tmp_path, name="NVIDIA A100-SXM4-80GB")
    settings = parse_settings("offload_optimizer=cpu")
    assert settings is not None
    prediction = predict_settings(analysis, settings)
    shape = Declared.of(analysis.timeline.run.info.settings).shape
    # Three of six blocks and the embedding or the logits, without the norms that formulas leave out.
    block = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 704
    assert shape.parameters == 6 * block + 2 * 257 * 256
    updated = (3 * block + 257 * 256) / 2
    # The mean of these rates, and of half of them.
    offload = 1.5 * updated * (44 / 51.2e9 + 8 / 31.5e9)
    saved = max((rank.total("optimizer") or 0) / int(rank.counted.sum()) for rank in analysis.ledger.ranks) / 1e9
    assert 0 < offload < saved
    assert prediction.predicted_ns < prediction.step_ns
    assert prediction.step_ns - prediction.predicted_ns == pytest.approx((saved - offload) * 1e9, rel=0.1)
    assert "no published training with ZeRO++ or offload was compared with the formula" in prediction.stands_on


@pytest.mark.parametrize(
    ("device", "expression", "sentence"),
    [
        ({"name": "AMD EPYC", "threads": 2}, "offload_optimizer=nvme", "processor, so its memory holds all state"),
        ({"name": "AMD EPYC", "threads": 2}, "quantize_weights=true", "processor, where the time of quantizing"),
        ({"name": "Unlisted"}, "quantize_weights=true", "bandwidth of the memory of Unlisted is unknown"),
        ({"name": "NVIDIA GeForce RTX 4090"}, "offload_optimizer=nvme", "disks of this run's servers are unknown"),
    ],
)
def test_unknown_rates_are_refused(tmp_path: Path, device: dict[str, object], expression: str, sentence: str) -> None:
    analysis = on_device(tmp_path, **device)
    settings = parse_settings(expression)
    assert settings is not None
    with pytest.raises(UsageError, match=sentence):
        predict_settings(analysis, settings)


HSDP = {"dp_replicate": 2, "fsdp": 2}


@pytest.mark.parametrize(
    ("change", "ranks", "shards", "num_bytes"),
    [
        (Settings(), 4, 2, MICROBATCHES * (2 * 2 + 4) / 2 + 2 * 1 / 2 * 4 / 2),
        (Settings(dp=4, zero=2), 4, 2, (2 + MICROBATCHES * 4) / 2 + 2 * 1 / 2 * 4 / 2),
        (Settings(dp=2), 2, 2, MICROBATCHES * (2 * 2 + 4) / 2),
        (Settings(zero=1), 4, 4, 3 / 4 * (4 + 4)),
        (Settings(zero=0), 4, 4, 2 * 3 / 4 * 4),
        (Settings(cp=2), 8, 4, 3 / 4 * MICROBATCHES * (2 * 2 + 4) + 2 * 1 / 2 * 4 / 4),
    ],
)
def test_replicas_keep_their_shards(change: Settings, ranks: int, shards: int, num_bytes: float) -> None:
    """DDP instead has one group of all ranks. Bytes of one parameter that a ring sends."""
    settings = recorded(**HSDP)
    declared = Declared.of(settings)
    layout = new_layout(declared.layout, change)
    assert (layout.shards, layout.shards // layout.replicas) == (ranks, shards)
    assert dp_seconds(settings, change) == pytest.approx(num_bytes * declared.shape.parameters / 1e9)


def test_data_ranks_that_do_not_fill_replicas_are_refused() -> None:
    declared = Declared.of(recorded(**HSDP, batch=96))
    assert new_layout(declared.layout, Settings(dp=6)).replicas == 3
    with pytest.raises(
        UsageError, match=r"dp = 3 does not divide into replicas of 2 ranks \(dp_replicate\); choose a mul"
    ):
        new_layout(declared.layout, Settings(dp=3))


def test_gradients_of_fsdp_are_reduced_in_the_type_of_the_run() -> None:
    """Two gathers and one reduction per microbatch, all in bf16."""
    settings = recorded(fsdp=4, fsdp_table={"reduce": "bf16"})
    parameters = Declared.of(settings).shape.parameters
    assert dp_seconds(settings, Settings()) == pytest.approx(3 / 4 * MICROBATCHES * 3 * 2 * parameters / 1e9)


def test_stage_1_of_a_pipeline_stays_fsdp() -> None:
    declared = Declared.of(recorded(pp=2, fsdp=2))
    weights = {
        zero: declared.precision(new_layout(declared.layout, Settings(zero=zero))).weights for zero in (0, 1, 2, 3)
    }
    assert weights == {0: "fp32", 1: "bf16", 2: "bf16", 3: "bf16"}
    replicas = Declared.of(recorded(pp=2, dp=2, ddp={"shard_optimizer": True}))
    assert replicas.precision(replicas.layout).weights == "fp32"


@pytest.mark.parametrize(
    ("run_settings", "sentence"),
    [
        ({"dp": 4, "ddp": {"compression": "powersgd"}}, "ddp.compression = 'powersgd'"),
        ({"dp": 4, "ddp": {"compression": "bf16"}}, "ddp.compression = 'bf16'"),
        ({"fsdp": 4, "fsdp_table": {"quantization_block": 128}}, "fsdp.quantization_block = 128"),
    ],
)
def test_a_run_whose_messages_have_no_formula_is_refused(run_settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=f"{sentence} of this run has no formula for its messages; record a run"):
        Declared.of(recorded(**run_settings))


def test_the_numbers_that_a_change_of_stage_sends_are_stated() -> None:
    facts = predicted("demo", "zero=0").stands_on
    assert (
        "DDP reduces gradients in fp32; in the run FSDP gathers weights in fp32 and reduces gradients in fp32" in facts
    )


def test_the_layout_of_the_run_itself_takes_its_own_step() -> None:
    same = predicted("demo", "dp=2,cp=1")
    assert same.predicted_ns == pytest.approx(same.step_ns)
    assert same.least_ns <= same.step_ns <= same.most_ns


def test_the_prediction_is_between_the_difference_and_the_ratio_of_the_formula() -> None:
    """Twice the replicas compute half: from c + m to c / 2 + m' of 1 s, with the messages m and m' by the law."""
    doubled = predicted("demo", "dp=4")
    work = run("demo").utilization.work
    rate = measured_rates(run("demo"), source="demo").flops_per_second
    assert work.executed is not None
    assert rate is not None
    compute_ns = work.executed / 4 / rate * 1e9
    saved_ns = doubled.step_ns - doubled.predicted_ns
    assert compute_ns / 2 < saved_ns < doubled.step_ns / 2 * 1.2
    assert doubled.least_ns < doubled.predicted_ns < doubled.most_ns < doubled.step_ns


def test_copies_of_shards_take_no_time_or_as_long_as_their_messages() -> None:
    """Of 10 s of compute 2 s may be copies, next to messages of 2 s. The new layout has messages of 0.5 s."""
    before, after = (made(work=10.0, dp=seconds) for seconds in (2.0, 0.5))
    three, none = Layout(dp=2, zero=3), Layout(dp=2)
    assert _copying_seconds(three, three, before, after) == pytest.approx(0.5 - 2.0)
    assert _copying_seconds(three, none, before, after) == pytest.approx(-2.0)
    assert _copying_seconds(none, none, before, after) == 0.0
    half = made(work=5.0, dp=2.0)
    assert _copying_seconds(three, three, before, half) == pytest.approx(2.0 - 1.0)


def made(*, work: float, dp: float) -> Prediction:
    """A prediction of given seconds."""
    axis = AxisTime(axis="dp", tier=Tier.DOMAIN, algorithm=Algorithm.RING, seconds=dp, exposed_seconds=dp)
    return Prediction(
        ranks=2,
        tokens_per_step=1,
        model_flops=1,
        bubble_ratio=0.0,
        ideal_seconds=work,
        kernel_seconds=work,
        recompute_seconds=0.0,
        pointwise_seconds=0.0,
        axes=(axis,),
        memory=(),
        fits=True,
    )


def test_more_shards_of_sequences_add_messages_of_their_own() -> None:
    shared = predicted("demo", "cp=2")
    assert any(fact.startswith("cp takes") for fact in shared.stands_on)
    more_cores = "the new ranks are assumed to have cores, or GPUs, of their own, as idle as those of the run"
    assert more_cores in shared.stands_on
    assert more_cores not in predicted("demo", "zero=0").stands_on
    assert predicted("demo", "dp=4").predicted_ns < shared.predicted_ns < shared.step_ns


def test_what_the_formula_is_off_for_the_run_itself_is_stated() -> None:
    assert "for the run's own layout the formula is 6.9% too low" in predicted("demo", "zero=3").stands_on


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("ep=2", "ep = 2 needs experts, and the model has none"),
        ("cp=3", "cp is 3; it must divide the 128 tokens of a sequence"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused(expression: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        predicted("demo", expression)
